"""Records a profile window with PyTorch's profiler, when the agent orders one.

``_native`` calls at the boundaries of steps. The parts of ``torch.profiler`` are used that do
not read the events back into Python: what is recorded goes straight to a file. Functions of Python
are recorded by ``_native``, within a bound, and added to that file.

PyTorch takes up to 40 us for each operator to stop and to write, and holds the interpreter's lock:
several times what the operators themselves took. So the first step is recorded alone, and how long
PyTorch takes to stop after it bounds how many more are.

What is open when PyTorch's profiler stops writes to freed memory when it is closed. A range of the
loop does if another one runs then, as that of ``DistributedDataParallel.forward`` around the begin
of a step: so between the two nothing is recorded for a step. The range of a collective does in any
case, unless it is NCCL's, which ends as it is issued: gloo closes it in a thread of its own, once
all ranks have come. So beside other groups than NCCL's nothing new is recorded first, and PyTorch's
profiler stops some steps later.
"""

import contextlib
import gc
import os
import site
import sys
import time
from pathlib import Path

from laggard import _native

# How long PyTorch may take to stop and to write what is kept: more steps are not recorded.
STALL_S = 0.5
# Stopping and writing, by how long stopping takes.
STOP_AND_WRITE = 1.5
# How long collectives may be under way: these steps and seconds, or more seconds if steps are long.
SETTLE_STEPS, SETTLE_S, SETTLE_MOST_S = 4, 0.5, 2.0

# What becomes of the step that begins.
RECORDED, ENOUGH, NOT_KEPT = range(3)


class Recorder:
    """One profile window after another; never over a profiler of the user's."""

    def __init__(self, torch):
        self._torch = torch
        self._autograd = torch.autograd
        self._profiler = torch.autograd.profiler
        self._range = self._recorded = self._calls = self._room = self._last = None
        self._recording, self._settling = False, None
        os.register_at_fork(after_in_child=self._after_fork)

    def begin(self, step):
        """Starts to record; says whether it does."""
        if self._is_taken():
            return False
        if self._may_outlast() and not hasattr(self._autograd, "_toggle_collection_dynamic"):
            raise RuntimeError("this PyTorch cannot stop to record before its profiler stops")
        self._recorded = self._room = self._last = None
        self._start(step)
        return True

    def _start(self, step):
        made = self._profile()
        config, activities = made.config(), made.kineto_activities
        self._autograd._prepare_profiler(config, activities)
        self._autograd._enable_profiler(config, activities)
        self._recording = True
        self._enter(step)
        self._calls = None
        # The interpreter has one profile function.
        if sys.getprofile() is None:
            with contextlib.suppress(RuntimeError):
                self._calls = _native.CallRecorder.start()
                gc.callbacks.append(self._calls)

    def step(self, step, wanted):
        """A step begins, and so many more are wanted; says what becomes of it."""
        if self._room is None:
            return self._measure(wanted) if self.settles(step) else NOT_KEPT
        if not self._recording:
            return self._go_on(step, wanted)
        if step >= self._last:
            return ENOUGH
        self._leave()
        self._enter(step)
        return RECORDED

    def _measure(self, wanted):
        """Stops after the first step, which is enough if others would take too long."""
        began = time.perf_counter()
        self._recorded = self._stop()
        steps = int(STALL_S / STOP_AND_WRITE / (time.perf_counter() - began))
        if self._recorded is None or steps == 0 or wanted < 2:
            return ENOUGH
        # A power of two: ranks, of which each stops a little sooner or later, mostly end together.
        self._room = 1 << (steps.bit_length() - 1)
        return NOT_KEPT

    def _go_on(self, step, wanted):
        """Records so many steps, if nobody else does by now. The first one is not kept."""
        if self._is_taken():
            return ENOUGH
        self._recorded = None
        self._last = step + min(self._room, wanted)
        self._start(step)
        return NOT_KEPT

    def settles(self, step):
        """Records nothing from this step on; says whether PyTorch's profiler may stop by now."""
        if not self._recording:
            return True
        if self._settling is None:
            self._end_calls()
            self._leave()
            self._settling = step, time.monotonic()
            # A profiler of the user's that was started since has stopped ours.
            if self._users_runs() or not self._may_outlast():
                return True
            # All of them: PyTorch prints a warning if some are left out.
            kinds = set(self._torch.profiler.ProfilerActivity.__members__.values())
            self._autograd._toggle_collection_dynamic(False, kinds)
        first, since = self._settling
        steps, seconds = step - first, time.monotonic() - since
        return steps > 0 and (
            seconds >= SETTLE_MOST_S or (steps >= SETTLE_STEPS and seconds >= SETTLE_S)
        )

    def _may_outlast(self):
        """Whether collectives that were recorded may be under way when the profiler stops."""
        distributed = self._torch.distributed
        if not distributed.is_available() or not distributed.is_initialized():
            return False
        groups = distributed.distributed_c10d._world.pg_map.values()
        return any(str(backend) != "nccl" for backend, _ in groups)

    def stop(self):
        """Stops to record; says whether there is something to write."""
        if self._recording:
            self._recorded = self._stop()
        return self._recorded is not None

    def write(self, path):
        """Writes what was recorded. PyTorch holds the interpreter's lock meanwhile: in a thread
        it would hold up the loop as long."""
        recorded, self._recorded = self._recorded, None
        calls, self._calls = self._calls, None
        recorded.save(f"{path}.part")
        if calls is not None:
            calls.write(f"{path}.part", self._prefixes())
        os.rename(f"{path}.part", path)

    def close(self):
        """Stops and forgets."""
        if self._recording:
            self._stop()
            self._calls = None

    def _stop(self):
        """What was recorded; ``None`` if it is lost."""
        if self._settling is None:
            self._end_calls()
            self._leave()
        self._recording, self._settling = False, None
        # Who starts a profiler stops the one that runs: then there is nothing left of ours.
        if self._users_runs() or not self._autograd._profiler_enabled():
            return None
        return self._autograd._disable_profiler()

    def _end_calls(self):
        if self._calls is not None and not self._stop_calls():
            self._calls = None

    def _stop_calls(self):
        with contextlib.suppress(ValueError):  # if a script has taken it out
            gc.callbacks.remove(self._calls)
        return self._calls.stop()

    def _is_taken(self):
        return self._autograd._profiler_enabled() or self._users_runs()

    def _users_runs(self):
        # Set by the user's profilers only: ours is started below what sets it.
        return getattr(self._profiler, "_is_profiler_enabled", False)

    def _profile(self):
        cuda = self._torch.cuda
        options = {"use_kineto": True}
        if cuda.is_available() and cuda.is_initialized():
            options["use_device"] = "cuda"
        return self._profiler.profile(**options)

    def _prefixes(self):
        """Folders that files are called without, the longest of several first."""
        packages = Path(self._torch.__file__).parents[1]
        folders = [*site.getsitepackages(), *sys.path, site.getusersitepackages(), packages]
        return [f"{folder}{os.sep}" for folder in sorted({*map(os.path.abspath, folders)})[::-1]]

    def _enter(self, step):
        self._range = self._profiler.record_function(f"ProfilerStep#{step}")
        self._range.__enter__()

    def _leave(self):
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None

    def _after_fork(self):
        # A forked child inherits what is recorded for, and nobody would ever stop it.
        if self._recording:
            self._recording = False
            if self._calls is not None:
                self._stop_calls()
                self._calls = None
            with contextlib.suppress(Exception):
                cpu = self._torch.profiler.ProfilerActivity.CPU
                self._autograd._toggle_collection_dynamic(False, {cpu})
