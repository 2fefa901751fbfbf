"""One wheel for every Python: the package attaches and records on those this machine has.

They have no PyTorch, so a stand-in has what the hooks hook into. `laggard run` lends the package.
"""

import json
import re
import shutil
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path

import pytest
from conftest import BIN, HERE, PATIENCE_S, laggard

STEPS = 30

STAND_IN = {
    "__init__.py": """
        from contextlib import nullcontext
        from types import SimpleNamespace
        from . import amp, autograd, optim, utils
        backends = SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: False))
        distributed = SimpleNamespace(is_available=lambda: False)

        class Tensor:
            is_cpu = False
            def item(self, *args, **kwargs):
                return args, kwargs
            __bool__ = lambda self: False
            tolist = __float__ = __int__ = item
            def cpu(self, *args, **kwargs):
                return args, kwargs

        allowed = SimpleNamespace(_allowed_methods=[len, Tensor.cpu])
        nn = SimpleNamespace(parameter=SimpleNamespace(UninitializedTensorMixin=allowed))
        _C = SimpleNamespace(
            _disabled_torch_function_impl=None, DisableTorchFunction=nullcontext, _dynamo=None
        )
        """,
    "amp.py": """
        class GradScaler:
            def step(self, optimizer):
                optimizer.step()
        """,
    "autograd/__init__.py": "from . import profiler, variable",
    "autograd/profiler.py": "_is_profiler_enabled = False",
    "autograd/variable.py": """
        class Engine:
            def run_backward(self, tensors, *, keep=False):
                return tensors

        class Variable:
            _execution_engine = Engine()
        """,
    "optim/__init__.py": "from . import optimizer",
    "optim/optimizer.py": """
        before, after = [], []
        register_optimizer_step_pre_hook = before.append
        register_optimizer_step_post_hook = after.append

        def step(optimizer):
            for hook in before:
                hook(optimizer, (), {})
            for hook in after:
                hook(optimizer, (), {})
        """,
    "utils/__init__.py": "from . import data",
    "utils/data/__init__.py": """
        from . import dataloader
        get_worker_info = lambda: None
        """,
    "utils/data/dataloader.py": """
        class _BaseDataLoaderIter:
            def __init__(self, batches):
                self.left = batches
            def __iter__(self):
                return self
            def __next__(self):
                if self.left == 0:
                    raise StopIteration
                self.left -= 1
                return self.left
        """,
}

TRAIN = f"""
import laggard, torch
from torch.autograd.variable import Variable
from torch.optim import optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

for batch in _BaseDataLoaderIter({STEPS}):
    with laggard.stage("tokenise"), laggard.side_channel("beside"):
        pass
    assert Variable._execution_engine.run_backward((batch,), keep=True) == (batch,)
    optimizer.step(None)
    tensor = torch.Tensor()
    assert (tensor.item(), tensor.cpu(1, of=2)) == (((), {{}}), ((1,), {{"of": 2}}))
    assert not tensor
assert torch.allowed._allowed_methods == [len, torch.Tensor.cpu]
assert type(Variable._execution_engine).__name__ == "EngineProxy"
assert laggard.summary()["job"]["ranks"] == 1
"""


def pythons():
    """Other Pythons than this one that the package is for, by version."""
    candidates = [*Path.home().glob(".pyenv/versions/3.*/bin/python3")]
    names = [f"python3.{minor}" for minor in range(9, 20)]
    candidates += [Path(found) for found in map(shutil.which, names) if found]
    found = {}
    look = (
        "import sys, sysconfig\n"
        "print(*sys.version_info[:2], sysconfig.get_config_var('Py_GIL_DISABLED'))"
    )
    for python in candidates:
        done = subprocess.run([python, "-c", look], capture_output=True, text=True)
        version = re.fullmatch(r"3 (\d+) (0|None)\n", done.stdout)
        if version and int(version[1]) >= 9:
            found.setdefault(int(version[1]), python)
    found.pop(sys.version_info[1], None)
    return [pytest.param(python, id=f"3.{minor}") for minor, python in sorted(found.items())]


def attaches_and_records(python, folder, programs=BIN):
    """What the package is for, with this Python and the laggard command among these programs."""
    for name, text in STAND_IN.items():
        file = folder / "torch" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(re.sub(r"(?m)^        ", "", text))
    script = folder / "train.py"
    script.write_text(TRAIN)
    outcome = laggard("run", "--json", "--", python, script, programs=programs)
    assert (outcome.code, "not attached" in outcome.stderr) == (0, False), outcome.stderr
    verdict = outcome.verdict
    assert (verdict["job"]["steps"], verdict["job"]["lost_records"]) == (STEPS, 0)
    stages = {stage["name"] for stage in verdict["stages"]}
    wanted = {"data.next_wait", "tokenise", "model.backward_cpu_wall", "optim.step_cpu_wall"}
    assert wanted <= stages
    # It becomes a rank with its first optimizer step.
    assert [channel["samples"] for channel in verdict["side_channels"]] == [STEPS - 1]
    assert "failed" not in json.dumps(verdict["notes"])


@pytest.mark.parametrize("python", pythons())
def test_the_package_attaches_and_records(python, tmp_path):
    attaches_and_records(python, tmp_path)


def test_the_wheel_is_all_that_is_needed(tmp_path):
    programs = tmp_path / "environment" / "bin"
    subprocess.run([sys.executable, "-m", "venv", programs.parent], check=True)
    cache = Path(sys.prefix).parent
    subprocess.run(["make", "-C", HERE.parents[1], f"CACHE={cache}", "tested"], check=True)
    (wheel,) = (cache / "tested").glob("*.whl")
    pip = [programs / "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, wheel], check=True)
    attaches_and_records(programs / "python", tmp_path, programs)
    plugin = """
        import ctypes, pathlib, laggard
        folder = pathlib.Path(laggard.__file__).parent
        ctypes.CDLL(folder / "liblaggard_nccl.so").ncclProfiler_v7
        ctypes.CDLL(folder / "liblaggard_preload.so").ncclAllReduce
        """
    subprocess.run([programs / "python", "-c", textwrap.dedent(plugin)], check=True)
    serve = [programs / "laggard", "serve", "--listen", "127.0.0.1:0", "--data", tmp_path / "jobs"]
    with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as server:
        try:
            (url,) = re.findall(r"http://[\d.:]+", server.stderr.readline())
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
                assert "<title>jobs - laggard</title>" in page.read().decode()
        finally:
            server.kill()
