"""Blocks of Megatron-Core's pipelines, by the timers it starts and stops around each pass.

Its schedules do so whether the timers are logged or not; one that is not logged does nothing.
"""

import functools
import sys

from . import _native

_PASSES = {"forward-compute": 0, "backward-compute": 1}
# Around all passes of an iteration.
_ITERATION = "forward-backward"


class Blocks:
    """Where this rank's next block is, by how many of its kind came before in the iteration."""

    def __init__(self, note):
        self._note = note
        self._counts = {}
        self._open = {}
        self._table = None

    def iterate(self):
        self._counts.clear()
        self._table = None

    def interleave(self, table):
        """In this order microbatches and chunks go forward in this iteration."""
        self._table = table

    def begin(self, passes):
        try:
            place = self._place(passes)
            if place is not None:
                _native.block(True, passes, place)
            # Only what could be told is told the end of.
            self._open[passes] = place
        except Exception as error:
            self._note(f"a block of a pipeline is not recorded: {error!r}")

    def end(self, passes):
        place = self._open.pop(passes, None)
        if place is not None:
            _native.block(False, passes, place)

    def _place(self, passes):
        state = sys.modules["megatron.core.parallel_state"]
        size = state.get_pipeline_model_parallel_world_size()
        chunks = state.get_virtual_pipeline_model_parallel_world_size() or 1
        if size == 1:
            return None
        if self._table:
            count = self._counts.get(passes, 0)
            self._counts[passes] = count + 1
            microbatch, chunk = self._table[count]
            if passes == _PASSES["backward-compute"]:
                chunk = chunks - 1 - chunk
        else:
            chunk = 0 if chunks == 1 else state.get_virtual_pipeline_model_parallel_rank()
            if chunk is None:
                self._note("this Megatron does not say which chunk of a pipeline runs")
                return None
            microbatch = self._counts.get((passes, chunk), 0)
            self._counts[passes, chunk] = microbatch + 1
        stage = chunk * size + state.get_pipeline_model_parallel_rank()
        first_rank = state.get_pipeline_model_parallel_first_rank()
        return stage, microbatch, chunks * size, first_rank


class _Timer:
    """One of Megatron's timers that tells blocks."""

    def __init__(self, timer, started, stopped):
        self._timer, self._started, self._stopped = timer, started, stopped

    def start(self, *args, **kwargs):
        # What a logged timer waits for first is no part of the block.
        self._timer.start(*args, **kwargs)
        self._started()

    def stop(self, *args, **kwargs):
        self._timer.stop(*args, **kwargs)
        self._stopped()

    def __getattr__(self, name):
        return getattr(self._timer, name)


def _watch_timers(module, blocks):
    """Makes Megatron's timers tell blocks."""
    original = module.Timers.__call__

    def call(self, name, *args, **kwargs):
        timer = original(self, name, *args, **kwargs)
        passes = _PASSES.get(name)
        if passes is not None:
            return _Timer(timer, lambda: blocks.begin(passes), lambda: blocks.end(passes))
        if name == _ITERATION:
            return _Timer(timer, blocks.iterate, lambda: None)
        return timer

    module.Timers.__call__ = call


def _watch_schedules(module, blocks):
    """Makes the interleaved schedule tell which chunk runs when; older ones set a rank for it."""
    original = getattr(module, "get_schedule_table", None)
    if original is None:
        return

    @functools.wraps(original)
    def table(*args, **kwargs):
        made = original(*args, **kwargs)
        blocks.interleave(made)
        return made

    module.get_schedule_table = table


WATCHES = {
    "megatron.core.timers": _watch_timers,
    "megatron.core.pipeline_parallel.schedules": _watch_schedules,
}
