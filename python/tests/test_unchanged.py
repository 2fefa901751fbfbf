"""What a script finds as it would be without laggard, whatever it does with PyTorch."""

import textwrap

import pytest
from conftest import JOBS, accelerated
from test_hooks import ALONE, LOOP


@pytest.fixture
def unchanged(python):
    """Runs a script with laggard and without, and returns what it prints, which is the same."""

    def unchanged(script, **environment):
        script = "import laggard, json, torch\n" + textwrap.dedent(script)
        printed = python(script, **environment)
        assert printed == python(script, LAGGARD_ENABLE="0", **environment)
        return printed

    return unchanged


def test_a_forked_child_that_ends_leaves_its_parent_alone(python):
    lives = python(
        """
        import laggard, json, os, socket, sys, torch, torch.distributed as dist
        from laggard import _native
        dist.init_process_group("gloo")
        for ends in (sys.exit, os._exit):
            child = os.fork()
            if child == 0:
                ends(0)
            assert os.waitpid(child, 0)[1] == 0
        # It still answers, and the process lives.
        with socket.socket(socket.AF_UNIX) as served:
            served.connect(f"{_native.ring_path()}.sock")
            served.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            assert served.recv(4) == b"HTTP"
        print(json.dumps("lives"))
        dist.destroy_process_group()
        """,
        LAGGARD_HOOKS="0",
        **ALONE,
    )
    assert lives == "lives"


def test_a_forked_rank_that_leaves_its_group_alone_ends_as_it_does_alone(python):
    ended = python(
        """
        import laggard, json, os, sys, torch, torch.distributed as dist
        child = os.fork()
        if child == 0:
            dist.init_process_group("gloo")
            dist.all_reduce(torch.ones(1))
            sys.exit(3)
        print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
        """,
        **ALONE,
    )
    assert ended == 3


def test_methods_of_tensors_are_what_they_are_called(unchanged):
    printed = unchanged(
        """
        import pickle
        names = "item", "tolist", "cpu", "__bool__", "__float__", "__int__"
        methods = [getattr(torch.Tensor, name) for name in names]
        assert all(pickle.loads(pickle.dumps(method)) is method for method in methods)
        one = torch.ones(())
        values = [one.item(), one.tolist(), one.cpu().tolist(), bool(one), float(one), int(one)]
        values += [type(method).__name__ for method in methods]
        values += [method.__doc__ for method in methods]
        values.append(one.cpu(memory_format=torch.preserve_format).item())
        try:
            one.item(1)
        except TypeError as error:
            values.append(str(error))
        torch.nn.LazyLinear(3).cpu()
        try:
            torch.nn.LazyLinear(3).weight.item()
        except ValueError:
            values.append("a parameter without a size")
        print(json.dumps(values))
        """
    )
    assert printed[:6] == [1.0, 1.0, 1.0, True, 1.0, 1]


def test_a_class_of_tensors_and_a_mode_see_the_calls_of_the_script_alone(unchanged):
    assert unchanged(
        """
        from torch.overrides import TorchFunctionMode
        class Strict(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                if function.__name__ != "item":
                    return NotImplemented
                with torch._C.DisableTorchFunctionSubclass():
                    return function(*args, **(kwargs or {}))
        called = [torch.ones(()).as_subclass(Strict).item()]
        class Mode(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                called.append(function.__name__)
                return function(*args, **(kwargs or {}))
        x = torch.ones(())
        with Mode():
            called.append(x.item())
            called.append(bool(x))
        print(json.dumps(called))
        """
    ) == [1.0, "item", 1.0, "__bool__", True]


def test_warnings_of_what_is_read_back_point_to_the_script(unchanged):
    places = unchanged(
        """
        import os, warnings
        def positive(x):
            return x if x.sum() > 0 else -x
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.jit.trace(positive, torch.ones(2))
            float(torch.ones((), requires_grad=True))
        print(json.dumps([[os.path.basename(it.filename), it.lineno] for it in caught]))
        """
    )
    assert ["script.py", 5] in places


def test_compiled_functions_that_read_back_break_where_they_did(unchanged):
    breaks, _ = unchanged(
        """
        from torch._dynamo.utils import counters
        @torch.compile(backend="eager")
        def f(x):
            x = x + 1
            if x.sum() > 0:
                x = x * 2
            return x / x.max().item() + x.cpu()
        for kind in (torch.float32, torch.float64, torch.float16):
            f(torch.ones(3, dtype=kind))
        print(json.dumps([dict(counters["graph_break"]), dict(counters["frames"])]))
        """
    )
    assert breaks


def test_the_engine_is_known_by_its_class(unchanged):
    assert unchanged(
        """
        engine = torch.autograd.Variable._execution_engine
        print(json.dumps(isinstance(engine, torch._C._ImperativeEngine)))
        """
    )


def test_what_a_signal_handler_raises_in_a_hook_reaches_the_script(python):
    raised = python(
        """
        import json
        from laggard import _native
        raised = []
        def looks(error):
            def call():
                raise error
            return call
        for error in (KeyboardInterrupt(), SystemExit(3), ValueError()):
            hook = _native.OptimizerHook(8, looks(error))
            try:
                hook(None, (), {})
                for _ in range(1000):
                    pass
            except BaseException as error:
                raised.append(repr(error))
        print(json.dumps(raised))
        """
    )
    assert raised == ["KeyboardInterrupt()", "SystemExit(3)"]


def test_a_loop_goes_on_after_an_optimizer_that_failed(python):
    steps = python(
        LOOP
        + textwrap.dedent(
            """
            import json, laggard
            class Fails(optim.SGD):
                failed = False
                def step(self, closure=None):
                    if not Fails.failed:
                        Fails.failed = True
                        raise MemoryError
                    return super().step(closure)
            for again in range(2):
                # As a notebook makes it anew.
                optimizer = Fails(model.parameters(), lr=0.1)
                Fails.failed = False
                for (x,) in DataLoader(TensorDataset(torch.randn(31, 4))):
                    model(x).sum().backward()
                    try:
                        optimizer.step()
                    except MemoryError:
                        pass
            print(json.dumps(laggard.summary()["job"]["steps"]))
            """
        )
    )
    assert steps == 60


@accelerated
def test_only_what_is_read_from_a_device_is_waited_for(python):
    script = f"""
        import sys
        sys.path.insert(0, {str(JOBS.parent)!r})
        import accelerator, json, laggard, torch
        from torch import nn, optim
        from torch.utils.data import DataLoader, TensorDataset
        model = nn.Linear(4, 1).to("sim")
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for (x,) in DataLoader(TensorDataset(torch.randn(40, 4))):
            loss = model(x.to("sim")).sum()
            loss.backward()
            optimizer.step()
            # Optimizers count their steps on the host.
            x.sum().item()
            loss.item()  # this line
            torch.accelerator.synchronize()  # and this one
        print(json.dumps(laggard.summary()["job"]["read_backs"]))
        """
    lines = textwrap.dedent(script).splitlines()
    expected = {f"script.py:{at}" for at, line in enumerate(lines, 1) if ")  # " in line}
    assert {it["line"] for it in python(script)} == expected


def test_a_loader_that_is_read_on_another_thread_is_none_of_the_loops(python):
    threads = python(
        LOOP
        + textwrap.dedent(
            """
            import json, laggard, threading
            from laggard import _attach
            threads = set()
            class Events:
                def begin(self):
                    threads.add(threading.current_thread().name)
                end = begin
            _attach._forward_events = Events()
            train()
            thread = threading.Thread(target=train, name="prefetcher")
            thread.start()
            thread.join()
            is_built = torch.backends.cuda.is_built()
            print(json.dumps(sorted(threads) if is_built else ["MainThread"]))
            """
        )
    )
    assert threads == ["MainThread"]


FUSED = """
import sys
sys.path.insert(0, {jobs!r})
import laggard, json, torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
{device}
model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]).to(device)
optimizers = {{p: optim.SGD([p], lr=0.1) for p in model.parameters()}}
for p in optimizers:
    p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
for (x,) in DataLoader(TensorDataset(torch.randn(40, 8))):
    model(x.to(device)).sum().backward()
    model.zero_grad()
summary = laggard.summary()
print(json.dumps([summary["job"]["steps"], [it["name"] for it in summary["stages"]]]))
"""


@accelerated
def test_optimizers_inside_a_backward_pass_of_a_device_end_its_steps(python):
    on_device = "import accelerator; device = 'sim'"
    script = FUSED.format(jobs=str(JOBS.parent), device=on_device)
    steps, stages = python(script)
    assert steps in (39, 40)
    assert {"data.next_wait", "model.backward_cpu_wall"} <= set(stages)
