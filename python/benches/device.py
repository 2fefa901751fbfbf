"""What device marks add to a step, with events that cost nothing: all but the driver's part.

Prints one line of JSON: nanoseconds that the twelve marks of a step of DDP with four collectives
take, in steps that are sampled and in the others.
"""

import functools
import json
import statistics
import sys
import tempfile
import time
from types import SimpleNamespace

from laggard import _native

STEPS = 20_000
# Data, forward, backward and optimizer, each begun and ended; collectives are issued in backward.
BEFORE, AFTER = (1, 2, 4, 5, 6), (7, 8, 9)


class Accelerator:
    def is_started(self):
        return "off" not in sys.argv

    def event(self):
        never = functools.partial(bool, 1)
        return SimpleNamespace(record=lambda *stream: None, query=never, elapsed_time=float_of)

    def stream(self):
        return None

    def is_capturing(self):
        return False

    def failed(self, error):
        raise error


def float_of(event):
    return 1.0


issued = SimpleNamespace(name=3, op_id=1, input_tensors=[])
hook = _native.CollectiveHook(7, {})
_native.set_accelerator(Accelerator())
with tempfile.TemporaryDirectory() as rings:
    _native.activate(directory=rings, job="bench", host="here", rank=0, world_size=1, attempt=0)
    took = {True: [], False: []}
    for _ in range(STEPS):
        began = time.perf_counter_ns()
        for kind in BEFORE:
            _native.mark(kind)
        for _ in range(4):
            hook(issued)
        for kind in AFTER:
            _native.mark(kind)
        ended = time.perf_counter_ns()
        took[_native.read_back(True)].append(ended - began)
    _native.close()
medians = {
    "sampled_steps": len(took[True]),
    "sampled_ns": statistics.median(took[True]) if took[True] else None,
    "other_ns": statistics.median(took[False]),
}
print(json.dumps(medians))
