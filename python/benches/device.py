"""What device marks add to a step. Prints one line of JSON: nanoseconds that the marks of a step
take whose backward pass issues four collectives, as with DDP, or as many as are asked for, in steps
that are sampled and in the others.

    python device.py [off|free|card|torch] [COLLECTIVES]

Events are free, which leaves all but the driver's part, or those of the card of this machine, by
way of its driver or of PyTorch. With those, a step launches a kernel, and what single calls take is
said as well.
"""

import functools
import json
import statistics
import sys
import tempfile
import time
from types import SimpleNamespace

from laggard import _native

HOW = sys.argv[1] if len(sys.argv) > 1 else "free"
ON_CARD = HOW in ("card", "torch")
COLLECTIVES = int(sys.argv[2]) if len(sys.argv) > 2 else 4
STEPS = (4_000 if ON_CARD else 20_000) * 12 // (8 + COLLECTIVES)
CALLS = 2_000
# Data, forward, backward and optimizer, each begun and ended; collectives are issued in backward.
BEFORE, AFTER = (1, 2, 4, 5, 6), (7, 8, 9)


class Accelerator:
    def is_started(self):
        return HOW != "off"

    def event(self):
        never = functools.partial(bool, 1)
        return SimpleNamespace(record=lambda *stream: None, query=never, elapsed_time=float_of)

    def stream(self):
        return None

    def raw_stream(self):
        return None

    def is_capturing(self):
        return False

    def failed(self, error):
        raise error


def float_of(event):
    return 1.0


def calls(torch, accelerator):
    """Nanoseconds that a call takes, the median of many."""
    begin, end = accelerator.event(), accelerator.event()
    stream = accelerator.stream()
    begin.record()
    end.record()
    torch.cuda.synchronize()
    made = {
        "event": accelerator.event,
        "record": end.record,
        "record_on_stream": functools.partial(end.record, stream),
        "stream": accelerator.stream,
        "raw_stream": accelerator.raw_stream() or accelerator.stream,
        "is_capturing": accelerator.is_capturing,
        "query": end.query,
        "elapsed_time": functools.partial(begin.elapsed_time, end),
        "launch": functools.partial(torch.zeros(1, device="cuda").add_, 1),
    }
    said = {}
    for name, call in made.items():
        took = []
        for _ in range(CALLS):
            began = time.perf_counter_ns()
            call()
            took.append(time.perf_counter_ns() - began)
            if len(took) % 100 == 0:
                torch.cuda.synchronize()
        said[name] = statistics.median(took)
    return said


def of_this_machine():
    """The accelerator as laggard uses it, a kernel to launch, and what single calls take."""
    import torch
    from laggard import _device

    torch.cuda.init()
    accelerator = _device.Accelerator(torch, print)
    accelerator.is_started()
    if HOW == "torch":
        accelerator.raw_stream = lambda: None
    one = torch.ones(1, device="cuda")
    return accelerator, lambda: one.add_(1), calls(torch, accelerator)


issued = SimpleNamespace(name=3, op_id=1, input_tensors=[])
hook = _native.CollectiveHook(7, {})
accelerator, launch, took_calls = Accelerator(), lambda: None, {}
if ON_CARD:
    accelerator, launch, took_calls = of_this_machine()
_native.set_accelerator(accelerator)
with tempfile.TemporaryDirectory() as rings:
    _native.activate(directory=rings, job="bench", host="here", rank=0, world_size=1, attempt=0)
    took = {True: [], False: []}
    for _ in range(STEPS):
        launch()
        began = time.perf_counter_ns()
        for kind in BEFORE:
            _native.mark(kind)
        for _ in range(COLLECTIVES):
            hook(issued)
        for kind in AFTER:
            _native.mark(kind)
        ended = time.perf_counter_ns()
        is_sampled = _native.begin_read_back()
        if is_sampled:
            _native.end_read_back(None)
        took[is_sampled].append(ended - began)
    _native.close()
medians = {
    "sampled_steps": len(took[True]),
    "sampled_ns": statistics.median(took[True]) if took[True] else None,
    "other_ns": statistics.median(took[False]),
    "calls_ns": took_calls,
}
print(json.dumps(medians))
