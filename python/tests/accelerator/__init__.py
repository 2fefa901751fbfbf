"""An asynchronous accelerator on the CPU, for tests. README.md says what it is and what it is not.

Importing it builds it if need be, and makes it this process's accelerator: ``torch.device("sim")``.
"""

import atexit
import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

NAME, BACKEND, MODULE = "sim", "sim", "_accelerator"
HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "laggard" / "accelerator"


def library():
    """The built library; one is built for each source, PyTorch and Python, and kept."""
    sources = sorted([*HERE.glob("*.cpp"), *HERE.glob("*.hpp")])
    digest = hashlib.sha256(f"{torch.__version__} {sys.version}".encode())
    for source in sources:
        digest.update(source.read_bytes())
    built = CACHE / digest.hexdigest()[:16] / f"{MODULE}.so"
    if built.exists():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    # All ranks of a job ask at once: one builds.
    with (built.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            build(built)
    return built


def build(built):
    """One command; a minute."""
    from torch.utils.cpp_extension import include_paths, library_paths

    fresh = built.with_suffix(f".{os.getpid()}")
    command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", f"-DTORCH_EXTENSION_NAME={MODULE}"]
    for path in (*include_paths(), sysconfig.get_paths()["include"]):
        command += ["-isystem", path]
    command += [str(HERE / "accelerator.cpp"), "-o", str(fresh)]
    command += [f"-L{path}" for path in library_paths()]
    command += ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ImportError(f"the accelerator cannot be built: {done.stderr}")
    fresh.replace(built)


def load():
    loader = ExtensionFileLoader(MODULE, str(library()))
    spec = spec_from_file_location(MODULE, loader=loader)
    native = module_from_spec(spec)
    loader.exec_module(native)
    return native


torch.utils.rename_privateuse1_backend(NAME)
native = load()

stopped, queue, log = native.stopped, native.queue, native.log
fail_queries = native.fail_queries
capture_begin, capture_end = native.capture_begin, native.capture_end
paces = {}


def pace(factor, phase="all"):
    """From now on kernels of this phase take that many times as long."""
    paces[phase] = factor


def spend(seconds, phase="kernel"):
    """Launches a kernel that takes that long on the current stream."""
    native.spend(phase, seconds * paces.get(phase, paces.get("all", 1.0)))


def pause(seconds):
    """Launches a kernel that takes that long whatever the pace."""
    native.spend("pause", seconds)


def stop(where="kernel"):
    """The device never goes on: in a kernel launched now, or inside the next collective."""
    {"kernel": native.stop, "collective": native.stop_collectives}[where]()


def measured(since_ns=0):
    """What the device itself measured, in seconds by kind since then: kernels by their phase,
    "wait" for other streams and "idle" on the default stream, and "collectives" on theirs.
    """
    seconds = dict.fromkeys(("idle", "wait", "collectives"), 0.0)
    done_ns = None
    for stream, label, begin_ns, end_ns in native.log():
        if begin_ns < since_ns:
            continue
        took = (end_ns - begin_ns) * 1e-9
        if stream == 0:
            seconds[label] = seconds.get(label, 0.0) + took
            if done_ns is not None:
                seconds["idle"] += (begin_ns - done_ns) * 1e-9
            done_ns = end_ns
        elif label not in ("wait", "record"):
            seconds["collectives"] += took
    return seconds


def module():
    """What PyTorch asks a device for by its name, ``torch.sim``."""
    sim, process = ModuleType("torch.sim"), os.getpid()

    def nothing(*_, **__):
        return None

    sim.Stream, sim.Event = torch.Stream, torch.Event
    sim.is_available = sim.is_initialized = lambda: True
    sim._is_in_bad_fork = lambda: os.getpid() != process
    sim._lazy_init = sim.init = sim.set_device = sim.empty_cache = nothing
    sim.device_count = lambda: 1
    sim.current_device = lambda: 0
    sim.current_stream = lambda device=None: torch.accelerator.current_stream()
    sim.default_stream = lambda device=None: torch.Stream(
        stream_id=0, device_index=0, device_type=torch.accelerator.current_stream().device_type
    )
    sim.set_stream = torch.accelerator.set_stream
    sim.stream = lambda stream: stream or contextlib.nullcontext()
    sim.synchronize = lambda device=None: native.synchronize()
    sim.is_current_stream_capturing = native.capturing
    sim.manual_seed = sim.manual_seed_all = native.seed
    sim.get_rng_state = lambda device="sim": native.generator_state()
    sim.set_rng_state = lambda state, device="sim": native.set_generator_state(state)
    sim.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    return sim


def process_group(store, rank, size, timeout):
    """A process group of the device: gloo does the work, behind the host."""
    return native.collectives(dist.ProcessGroupGloo(store, rank, size, timeout=timeout))


sim = module()
torch._register_device_module(NAME, sim)
torch.utils.generate_methods_for_privateuse1_backend()
dist.Backend.register_backend(BACKEND, process_group, devices=[NAME])
# No kernel may run while the process is taken down.
atexit.register(native.end)
