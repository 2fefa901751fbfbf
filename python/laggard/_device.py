"""The device of this process, as ``_native`` uses it for marks on the device's clock."""

import functools
import os


class Accelerator:
    """Events and streams of whatever accelerator PyTorch has.

    :param torch: PyTorch.
    :param note: Says something beside the verdict.
    """

    def __init__(self, torch, note):
        self._torch, self._note = torch, note
        self._device = self._module = None
        self._captures = 0

    def is_started(self):
        """Whether the script has started its device; ``None`` if there is none to start."""
        if os.environ.get("LAGGARD_DEVICE_MARKS") == "0":
            self._note("device marks are switched off: LAGGARD_DEVICE_MARKS=0")
            return None
        accelerator = getattr(self._torch, "accelerator", None)
        if accelerator is None:
            if self._torch.backends.cuda.is_built():
                self._note("no device marks: this PyTorch has no torch.accelerator (2.6 or later)")
            return None
        device = accelerator.current_accelerator()
        if not device:
            return None
        module = self._torch.get_device_module(device)
        # Asking whether it is available may start it.
        if not getattr(module, "is_initialized", accelerator.is_available)():
            return False
        self._device, self._module = device, module
        return True

    def event(self):
        """A new event with a time."""
        return self._torch.Event(device=self._device, enable_timing=True)

    def stream(self):
        """The stream of the calling thread."""
        return self._torch.accelerator.current_stream(self._device)

    def is_capturing(self):
        """Whether a graph is captured, in which no event may be recorded or asked for."""
        of_module = getattr(self._module, "is_current_stream_capturing", None)
        return self._captures > 0 or (of_module is not None and of_module())

    def failed(self, error):
        """There are no device marks any more."""
        self._note(f"device marks ended: {error!r}")

    def watch_captures(self):
        """Learns of captures on other streams and threads."""
        graph = getattr(getattr(self._torch, "cuda", None), "CUDAGraph", None)
        for name, change in (("capture_begin", 1), ("capture_end", -1)):
            if hasattr(graph, name):
                setattr(graph, name, self._counted(getattr(graph, name), change))

    def _counted(self, original, change):
        @functools.wraps(original)
        def counted(*args, **kwargs):
            if change > 0:
                self._captures += 1
            try:
                return original(*args, **kwargs)
            except BaseException:
                # A capture that does not begin does not end.
                if change > 0:
                    self._captures -= 1
                raise
            finally:
                if change < 0:
                    self._captures -= 1

        return counted


# What makes the host wait for its device.
_OF_TENSORS = "item", "tolist", "cpu", "__bool__", "__float__", "__int__"


def watch_read_backs(torch, read_back):
    """Marks where the host waits for its device, in steps that are sampled."""
    places = [(getattr(torch, "Tensor", None), name) for name in _OF_TENSORS]
    places += [(getattr(torch, name, None), "synchronize") for name in ("cuda", "accelerator")]
    for place, name in places:
        if place is not None and hasattr(place, name):
            setattr(place, name, _waiting(getattr(place, name), read_back))


def _waiting(original, read_back):
    @functools.wraps(original)
    def waiting(*args, **kwargs):
        if not read_back(True):
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            read_back(False)

    return waiting
