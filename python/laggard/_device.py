"""The device of this process, as ``_native`` uses it for marks on the device's clock."""

import functools
import os
import sys


class Accelerator:
    """Events and streams of whatever accelerator PyTorch has.

    :param torch: PyTorch.
    :param note: Says something beside the verdict.
    """

    def __init__(self, torch, note):
        self._torch, self._note = torch, note
        self._device = self._module = None
        self.captures = 0

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

    def raw_stream(self):
        """What gives the address of the calling thread's stream, if CUDA's driver can be asked."""
        stream = getattr(self._torch._C, "_cuda_getCurrentRawStream", None)
        if self._device.type != "cuda" or self._torch.version.cuda is None or stream is None:
            return None
        return functools.partial(stream, self._module.current_device())

    def is_capturing(self):
        """Whether a graph is captured, in which no event may be recorded or asked for."""
        of_module = getattr(self._module, "is_current_stream_capturing", None)
        return self.captures > 0 or (of_module is not None and of_module())

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
                self.captures += 1
            try:
                return original(*args, **kwargs)
            except BaseException:
                # A capture that does not begin does not end.
                if change > 0:
                    self.captures -= 1
                raise
            finally:
                if change < 0:
                    self.captures -= 1

        return counted


# A script may read back in as many places as it likes; a ring has room for so many of their names.
_MAX_LINES = 32


def watch_read_backs(torch, native):
    """Marks where the host waits for its device, and for which line, in steps that are sampled."""
    lines = _Lines(torch)
    for name in ("cuda", "accelerator"):
        place = getattr(torch, name, None)
        if hasattr(place, "synchronize"):
            place.synchronize = _waiting(torch, place.synchronize, native, lines)
    tensor = torch.Tensor
    # What lazy modules allow they know by the methods themselves.
    allowed = torch.nn.parameter.UninitializedTensorMixin._allowed_methods
    names = [getattr(method, "__name__", "") for method in allowed]
    known = [getattr(tensor, name, None) is method for name, method in zip(names, allowed)]
    native.hook_read_backs(
        tensor, torch._C._disabled_torch_function_impl, torch._C.DisableTorchFunction, lines.name
    )
    allowed[:] = [
        getattr(tensor, name) if is_known else method
        for name, method, is_known in zip(names, allowed, known)
    ]


def _waiting(torch, original, native, lines):
    @functools.wraps(original)
    def waiting(*args, **kwargs):
        if not native.begin_read_back():
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            native.end_read_back(lines.name())

    skip = getattr(getattr(torch._C._dynamo, "eval_frame", None), "skip_code", None)
    if skip is not None:
        # There is nothing in it to compile.
        skip(waiting.__code__)
    return waiting


class _Lines:
    """Lines of the script, by the names they are known by."""

    def __init__(self, torch):
        files = filter(None, (getattr(torch, "__file__", None), __file__))
        self._not_theirs = tuple(os.path.dirname(file) + os.sep for file in files)
        self._names = {}

    def name(self):
        """The line of the script that this is called behind; ``None`` if there are too many."""
        own = frame = sys._getframe(1)
        while own is not None and own.f_code.co_filename.startswith(self._not_theirs):
            own = own.f_back
        own = own or frame
        line = own.f_code.co_filename, own.f_lineno
        if line not in self._names and len(self._names) < _MAX_LINES:
            self._names[line] = f"{os.path.basename(line[0])}:{line[1]}"
        return self._names.get(line)
