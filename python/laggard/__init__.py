"""laggard names what holds a distributed training job back.

``import laggard`` attaches hooks that find the stages of the training loop. Under
``laggard run -- torchrun ...`` not even the import is needed. If the loop is too unusual for
the hooks, name its steps and stages::

    with laggard.step():
        with laggard.stage("data.next_wait"):
            batch = next(batches)
        ...

``laggard.summary()`` returns the verdict as a dictionary::

    for incident in laggard.summary()["incidents"]:
        print(incident["text"])

With ``LAGGARD_ENABLE=0`` nothing is loaded, and all of these calls do nothing.
"""

import os

__all__ = ["side_channel", "stage", "step", "summary"]

if os.environ.get("LAGGARD_ENABLE") == "0":
    from ._off import side_channel, stage, step, summary
else:
    try:
        from ._attach import summary
        from ._native import side_channel, stage, step
    except ImportError as error:
        import sys

        print(f"laggard: not attached: {error}", file=sys.stderr)
        from ._off import side_channel, stage, step, summary
