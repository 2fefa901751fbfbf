"""Times the forward pass on the device: sampled, polled, and never waited for."""

from collections import deque

_CHANNEL = "model.fwd_loss_cuda_event_ms"
# One step of ten is measured: enough for a median, too little to notice.
_EVERY = 10
# Polls after which an event is given up; there is one poll a step.
_PATIENCE = 200
# Batches after which a job that has not started CUDA is one without it.
_BATCHES_WITHOUT = 50
# Pairs in flight at most: a device this far behind would only be slowed further.
_IN_FLIGHT = 16


class ForwardEvents:
    """Records a pair of events around the forward pass of sampled steps.

    :param cuda: ``torch.cuda`` or something with its ``Event``.
    :param native: Where samples go; the module ``laggard._native``.
    """

    def __init__(self, cuda, native):
        self._cuda, self._native = cuda, native
        self._spare, self._waiting = [], deque()
        self._open = self._last_step = None

    def begin(self):
        """A batch has arrived: the forward pass begins."""
        step = self._native.current_step()
        is_sampled = step % _EVERY == 0 and step != self._last_step
        if not (is_sampled or self._waiting) or self._cuda.is_current_stream_capturing():
            return
        self._poll()
        if not is_sampled or len(self._waiting) >= _IN_FLIGHT:
            return
        self._last_step = step
        self._open = self._spare.pop() if self._spare else self._pair()
        self._open[0].record()

    def end(self):
        """The backward pass begins: the forward pass and the loss are over."""
        if self._open is not None and not self._cuda.is_current_stream_capturing():
            self._open[1].record()
            self._waiting.append([self._open, 0])
        self._open = None

    def _pair(self):
        return self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)

    def _poll(self):
        while self._waiting:
            (start, end), polls = self._waiting[0]
            if end.query():
                self._native.side_sample(_CHANNEL, start.elapsed_time(end) * 1e-3)
                self._spare.append((start, end))
            elif polls < _PATIENCE:
                self._waiting[0][1] += 1
                return
            else:
                self._native.side_lost(_CHANNEL)
            self._waiting.popleft()


class AwaitDevice:
    """Stands in until the script has started CUDA. Starting it is not ours to do.

    :param settle: Called with whether the device is in use, once that is known.
    """

    def __init__(self, cuda, settle):
        self._cuda, self._settle, self._batches = cuda, settle, 0

    def begin(self):
        """Looks whether the device is in use by now, for the first batches."""
        self._batches += 1
        if self._cuda.is_initialized():
            self._settle(True)
        elif self._batches >= _BATCHES_WITHOUT:
            self._settle(False)

    def end(self):
        """Does nothing."""
