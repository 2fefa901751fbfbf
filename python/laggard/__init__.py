"""laggard names what holds a distributed training job back.

``import laggard`` attaches: hooks find the stages of the training loop by themselves, and
``laggard run -- torchrun ...`` does not even need the import. Where the loop is too unusual
for hooks, say it yourself::

    with laggard.step():
        with laggard.stage("data.next_wait"):
            batch = next(batches)
        ...

``laggard.summary()`` gives the verdict as a dictionary, for ``wandb.log`` and the like.

With ``LAGGARD_ENABLE=0`` all of this does nothing, and nothing is loaded.
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
