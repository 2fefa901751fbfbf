"""How laggard attaches: when, where, and what it leaves alone."""

import os
import sys
import textwrap

import pytest
from conftest import laggard

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

LOOP = """
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(4, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)

def train(steps=30):
    for (x,) in DataLoader(TensorDataset(torch.randn(steps, 4))):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
"""


def test_an_import_attaches_whether_torch_is_there_or_not(python):
    for order in ("import laggard, torch", "import torch, laggard"):
        steps = python(
            f"{order}\n" + LOOP + "train()\nimport laggard, json\n"
            "print(json.dumps(laggard.summary()['job']['steps']))"
        )
        assert steps == 30


def test_a_late_import_sees_loaders_and_optimizers_made_before(python):
    steps = python(
        LOOP + "train()\nimport laggard, json\ntrain()\n"
        "print(json.dumps(laggard.summary()['job']['steps']))"
    )
    assert steps == 30


def test_a_scaler_that_skips_its_optimizer_makes_a_step_all_the_same(python):
    verdict = python(
        LOOP
        + textwrap.dedent(
            """
            import json, laggard
            scaler = torch.amp.GradScaler("cpu")
            for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(30, 4)))):
                optimizer.zero_grad()
                loss = model(x).sum() * (float("inf") if step % 7 == 3 else 1.0)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            print(json.dumps(laggard.summary()))
            """
        )
    )
    assert verdict["job"]["steps"] == 30
    assert "optim.step_cpu_wall" in [stage["name"] for stage in verdict["stages"]]


def test_an_optimizer_inside_another_is_part_of_its_step(python):
    steps = python(
        LOOP
        + textwrap.dedent(
            """
            import json, laggard

            class Extragradient(optim.Optimizer):
                def __init__(self, inner):
                    super().__init__(model.parameters(), {})
                    self.inner = inner

                def step(self, closure):
                    self.inner.step()
                    closure()
                    self.inner.step()

            def gradient():
                optimizer.zero_grad()
                model(torch.randn(1, 4)).sum().backward()

            extragradient = Extragradient(optimizer)
            for _ in range(30):
                gradient()
                extragradient.step(gradient)
            print(json.dumps(laggard.summary()["job"]["steps"]))
            """
        )
    )
    assert steps == 30


def test_optimizers_in_turn_without_a_loader_are_one_step(python):
    steps = python(
        LOOP
        + textwrap.dedent(
            """
            import json, laggard
            other = optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cpu")
            for step in range(30):
                for part in (optimizer, other):
                    part.zero_grad()
                    loss = model(torch.randn(1, 4)).sum() * (float("inf") if step % 7 == 3 else 1.0)
                    scaler.scale(loss).backward()
                    scaler.step(part)
                    scaler.update()
            print(json.dumps(laggard.summary()["job"]["steps"]))
            """
        )
    )
    # That there are two is known when the first one runs again.
    assert steps == 31


def test_what_comes_before_the_forward_pass_of_data_parallel_is_a_gap(python):
    stages = python(
        LOOP
        + textwrap.dedent(
            """
            import json, laggard, torch.distributed as dist
            dist.init_process_group("gloo")
            model = nn.parallel.DistributedDataParallel(model)
            for _ in range(30):
                batch = torch.randn(1, 4)
                model(batch).sum().backward()
                optimizer.step()
            print(json.dumps([stage["name"] for stage in laggard.summary()["stages"]]))
            del model
            dist.destroy_process_group()
            """
        ),
        **ALONE,
    )
    assert "data.gap" in stages


def test_where_gradients_are_accumulated_each_forward_pass_begins_behind_a_gap(python):
    script = """
        import json, sys, time
        import laggard, torch, torch.distributed as dist
        from torch import nn
        from torch.distributed.fsdp import fully_shard

        def shard(model):
            model.require_backward_grad_sync = True
            return fully_shard(model)

        dist.init_process_group("gloo")
        model = {}(nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(20):
            for part in range(2):
                model.require_backward_grad_sync = part == 1
                time.sleep(0.02)
                model(torch.randn(1, 4)).sum().backward()
            optimizer.step()
        verdict = laggard.summary()
        stages = {{stage["name"]: stage["advance_s"] for stage in verdict["stages"]}}
        print(json.dumps(stages["data.gap"] / verdict["job"]["analysed_steps"]))
        del model
        dist.destroy_process_group()
        """
    for wrap in ("nn.parallel.DistributedDataParallel", "shard"):
        # Twice what each sleeps at least, however long it oversleeps.
        assert python(script.format(wrap), **ALONE) >= 0.04


def test_without_a_word_only_the_wrapper_attaches(python):
    look = "import sys, json, torch\nprint(json.dumps('laggard' in sys.modules))"
    assert python(look) is False
    assert python(look, LAGGARD_ENABLE="1") is True
    assert python(look, "-I", LAGGARD_ENABLE="1") is True


def test_looking_for_torch_does_not_lose_the_hook(python):
    attached = python(
        """
        import importlib.util, json, sys
        importlib.util.find_spec("torch")
        import torch
        from torch.autograd.variable import Variable
        loader = type(torch.__spec__.loader).__module__
        print(json.dumps([type(Variable._execution_engine).__name__, loader]))
        """,
        LAGGARD_ENABLE="1",
    )
    assert attached == ["EngineProxy", "_frozen_importlib_external"]


def test_worker_processes_never_become_ranks(python, rings):
    python(
        """
        import laggard, torch
        from torch import nn, optim
        from torch.utils.data import DataLoader, Dataset

        class Trains(Dataset):
            "A dataset that does in its worker what ranks do."
            def __len__(self): return 10
            def __getitem__(self, index):
                model = nn.Linear(2, 1)
                optimizer = optim.SGD(model.parameters(), lr=0.1)
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                return torch.ones(2)

        if __name__ == "__main__":
            model = nn.Linear(2, 1)
            optimizer = optim.SGD(model.parameters(), lr=0.1)
            # The first is forked of a process that is no rank yet, the last of one that is.
            for method in ("fork", "spawn", "forkserver", "fork"):
                for x in DataLoader(Trains(), num_workers=1, multiprocessing_context=method):
                    model(x).sum().backward()
                    optimizer.step()
        """,
        RANK="0",
    )
    assert len(list(rings.glob("*/*.ring"))) == 1


def test_spawned_and_forked_ranks_are_ranks(python, rings):
    python(
        """
        import laggard, os, torch
        import torch.multiprocessing as mp
        from torch import nn, optim

        def train(rank):
            os.environ["RANK"] = str(rank)
            model = nn.Linear(2, 1)
            optimizer = optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()

        if __name__ == "__main__":
            for method in ("spawn", "fork"):
                mp.start_processes(train, nprocs=2, start_method=method)
        """
    )
    ranks = sorted(path.name.split(".")[0] for path in rings.glob("*/*.ring"))
    assert ranks == ["rank0", "rank0", "rank1", "rank1"]


def test_a_rank_forked_of_a_rank_names_its_stages_in_its_own_ring(python):
    stages = python(
        """
        import json, laggard, multiprocessing, time

        def train(*names):
            for _ in range(20):
                with laggard.step():
                    for name in names:
                        with laggard.stage(name):
                            time.sleep(0.001)

        def forked():
            train("second")
            print(json.dumps([stage["name"] for stage in laggard.summary()["stages"]]), flush=True)

        train("first", "second")
        child = multiprocessing.get_context("fork").Process(target=forked)
        child.start()
        child.join()
        """
    )
    assert "second" in stages and "first" not in stages


def test_nested_stages_are_refused_and_errors_go_through(python):
    verdict = python(
        """
        import json, laggard, time
        for step in range(20):
            with laggard.step():
                with laggard.stage("outer"):
                    with laggard.stage("inner"):
                        time.sleep(0.001)
                try:
                    with laggard.stage("fails"):
                        raise KeyError("the user's own")
                except KeyError:
                    pass
                with laggard.side_channel("beside"):
                    pass
        print(json.dumps(laggard.summary()))
        """
    )
    assert verdict["job"]["steps"] == 20
    names = {stage["name"] for stage in verdict["stages"]}
    assert names >= {"outer", "fails", "step.other_cpu_wall"} and "inner" not in names
    names = python(
        LOOP
        + textwrap.dedent(
            """
            import json, laggard
            train(3)
            for step in range(20):
                with laggard.step():
                    with laggard.stage("outer"):
                        with laggard.stage("inner"):
                            pass
            with laggard.step(): pass
            print(json.dumps([stage["name"] for stage in laggard.summary()["stages"]]))
            """
        )
    )
    assert "outer" in names and "inner" not in names


def test_a_side_channel_is_entered_and_left_on_any_thread(python):
    channel = python(
        LOOP
        + textwrap.dedent(
            """
            import json, laggard, sys, threading
            raised = []
            sys.unraisablehook = lambda fault: raised.append(repr(fault.exc_value))
            threading.excepthook = lambda fault: raised.append(repr(fault.exc_value))
            train(1)

            def measure(channel):
                with channel[0]:
                    pass
                del channel[:]  # the last reference goes here

            for _ in range(3):
                measure([laggard.side_channel("beside")])
                thread = threading.Thread(target=measure, args=([laggard.side_channel("beside")],))
                thread.start()
                thread.join()
            assert not raised, raised
            (channel,) = laggard.summary()["side_channels"]
            print(json.dumps([channel["name"], channel["samples"]]))
            """
        )
    )
    assert channel == ["beside", 6]


def test_a_side_channel_of_every_step_takes_one_name(python):
    # A rank has room for 128 names, those of stages that come later among them.
    verdict = python(
        LOOP
        + textwrap.dedent(
            """
            import json, laggard
            train(1)
            for _ in range(300):
                with laggard.side_channel("beside"):
                    pass
            for step in range(30):
                with laggard.stage("later"):
                    pass
                train(1)
            print(json.dumps(laggard.summary()))
            """
        )
    )
    assert [channel["samples"] for channel in verdict["side_channels"]] == [300]
    assert "later" in [stage["name"] for stage in verdict["stages"]]


def test_ever_new_names_take_no_more_memory(python):
    grown_kib = python(
        LOOP
        + textwrap.dedent(
            """
            import json, laggard, resource
            train(1)

            def peak_kib():
                return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

            def name(numbers):
                for number in numbers:
                    with laggard.stage(f"stage {number}"), laggard.side_channel(f"{number}"):
                        pass

            name(range(1000))
            before = peak_kib()
            name(range(1000, 200_000))
            print(json.dumps(peak_kib() - before))
            """
        )
    )
    assert grown_kib < 4096


def test_compiled_models_break_where_they_did_before_and_nowhere_else(python):
    script = """
        import json, laggard, torch, torch.distributed as dist
        from torch import nn
        from torch._dynamo.utils import counters
        dist.init_process_group("gloo")
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        outer = torch.compile(nn.parallel.DistributedDataParallel(net), backend="eager")
        inner = nn.parallel.DistributedDataParallel(torch.compile(net, backend="eager"))
        for model in (outer, inner):
            for step in range(6):
                model.require_backward_grad_sync = step % 2 == 0
                model(torch.randn(2, 4)).sum().backward()
        print(json.dumps(dict(counters["graph_break"])))
        # PyTorch aborts now and then at the end of a process whose group was left alone.
        del model, inner, outer
        dist.destroy_process_group()
        """
    with_laggard = python(script, **ALONE)
    assert with_laggard == python(script, LAGGARD_ENABLE="0", **ALONE)


def test_the_autograd_engine_behaves_as_before(python):
    python(
        LOOP
        + textwrap.dedent(
            """
            import laggard
            from torch.utils.checkpoint import checkpoint
            train(2)
            x = torch.randn(3, 4, requires_grad=True)
            (grad,) = torch.autograd.grad(model(x).sum(), x)
            assert torch.equal(grad, model.weight.expand(3, 4))
            checkpoint(model, x, use_reentrant=True).sum().backward()
            try:
                torch.ones(1).backward()
            except RuntimeError as error:
                assert "does not require grad" in str(error)
            else:
                raise AssertionError("an error of backward was swallowed")
            train(2)
            """
        )
    )


def test_a_device_is_done_with_its_part_of_backward_before_anything_waits(python):
    order = python(
        """
        import json
        import laggard, torch
        from laggard import _attach

        order = []
        engine = torch.autograd.Variable._execution_engine
        _attach._issued = lambda op: order.append(f"issued {op}")
        before_waits = _attach._before_waits(engine)
        x = torch.ones(3, requires_grad=True)
        # DistributedDataParallel waits in what it puts off as its first gradient comes.
        x.register_hook(lambda gradient: engine.queue_callback(lambda: order.append("waits")))
        loss = x.square().sum()
        loss.register_hook(lambda gradient: order.append("begins"))
        before_waits((loss,))
        loss.backward()
        print(json.dumps(order))
        """
    )
    assert order == ["begins", "issued 3", "waits"]


def test_no_hook_synchronises_the_device():
    """Statically: nothing in the package's code calls what waits for the device."""
    import laggard as package

    folder = os.path.dirname(package.__file__)
    for name in os.listdir(folder):
        if name.endswith(".py"):
            with open(os.path.join(folder, name)) as file:
                assert "synchronize(" not in file.read(), name


class Event:
    """A device event that becomes ready when told to."""

    made = []

    def __init__(self, enable_timing):
        assert enable_timing
        self.ready = self.recorded = False
        Event.made.append(self)

    def record(self):
        self.recorded = True

    def query(self):
        return self.ready

    def elapsed_time(self, end):
        return 12.5

    def synchronize(self):
        raise AssertionError("the device is never waited for")


class Device:
    Event = Event
    capturing = False

    def is_current_stream_capturing(self):
        return self.capturing

    def is_initialized(self):
        return True


class Native:
    def __init__(self):
        self.step, self.samples, self.lost = 0, [], 0

    def current_step(self):
        return self.step

    def side_sample(self, name, seconds):
        self.samples.append((name, seconds))

    def side_lost(self, name):
        self.lost += 1


def events(steps, native, device, ready_after):
    from laggard._events import ForwardEvents

    Event.made.clear()
    channel = ForwardEvents(device, native)
    for step in range(steps):
        native.step = step
        for event in Event.made:
            event.ready = event.ready or ready_after == 0
        channel.begin()
        channel.end()
    return channel


def test_one_forward_pass_in_ten_is_timed_on_the_device():
    native = Native()
    events(101, native, Device(), ready_after=0)
    assert native.samples == [("model.fwd_loss_cuda_event_ms", 0.0125)] * 10
    assert len(Event.made) == 2, "events are used again"


def test_events_that_never_become_ready_are_given_up_and_bounded():
    native = Native()
    events(5000, native, Device(), ready_after=None)
    assert native.samples == []
    assert native.lost > 10
    assert len(Event.made) <= 2 * 17 * (1 + native.lost)


def test_nothing_is_recorded_into_a_captured_graph():
    device = Device()
    device.capturing = True
    native = Native()
    events(100, native, device, ready_after=0)
    assert Event.made == []


def test_tensors_that_python_never_saw_stay_that_way(python):
    # Once Python has seen a tensor, the thread that lets go of it last needs the interpreter: a
    # thread of PyTorch's that does so while the interpreter ends takes the process with it.
    seen = python(
        """
        import gc, json
        import laggard, torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        ours = torch.ones(3)

        def tensors(_):
            seen.append(sum(type(one) is torch.Tensor for one in gc.get_objects()))

        seen = []
        last = 1 << 40  # hooks are called in the order of their numbers
        dist.group.WORLD.register_pre_hook(last, tensors)
        tensors(None)
        dist.barrier()
        dist.all_reduce(ours)
        with torch.no_grad():
            dist._broadcast_coalesced(dist.group.WORLD, [ours], 1 << 20, 0)
        dist.group.WORLD.unregister_pre_hook(last)
        print(json.dumps([len(seen), max(seen) - seen[0]]))
        dist.destroy_process_group()
        """,
        **ALONE,
    )
    assert seen == [4, 0]


def test_the_wrapper_lends_its_package_to_other_interpreters(tmp_path):
    """A Python without laggard, with a sitecustomize of its own."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os; os.environ['OWN'] = 'ran'\n")
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.symlink_to(os.path.realpath(sys.executable))
    look = (
        "import os, laggard, laggard_autoload; print(os.environ['OWN'], laggard.__file__, "
        "os.environ['PYTHONPATH'])"
    )
    outcome = laggard("run", "--", other, "-c", look, PYTHONPATH=str(site))
    assert outcome.code == 0, outcome.stderr
    own, file, path = outcome.stdout.split()
    assert own == "ran" and "/python/laggard/" in file
    assert path.endswith(str(site))


MEGATRON = """
import json, sys, types
from laggard import _megatron
says = lambda answer: lambda: answer
state = sys.modules["megatron.core.parallel_state"] = types.SimpleNamespace(
    get_pipeline_model_parallel_world_size=says(2),
    get_virtual_pipeline_model_parallel_world_size=says(None),
    get_pipeline_model_parallel_rank=says(0),
    get_pipeline_model_parallel_first_rank=says(-1),
)
notes, told = [], []
blocks = _megatron.Blocks(notes.append)
"""


def test_a_block_of_megatron_that_cannot_be_told_raises_nothing(python):
    python(f"""{MEGATRON}
blocks.begin(0)
blocks.end(0)
assert "is not recorded" in notes[0], notes
""")


def test_older_schedules_of_megatron_say_which_chunk_runs(python):
    told = python(f"""{MEGATRON}
state.get_virtual_pipeline_model_parallel_world_size = says(2)
_megatron._native = types.SimpleNamespace(block=lambda begins, *block: told.append(block))
for chunk in (0, 1, 0, None):
    state.get_virtual_pipeline_model_parallel_rank = says(chunk)
    blocks.begin(1)
assert "which chunk" in notes[0], notes
print(json.dumps(told))
""")
    stages, microbatches = (0, 2, 0), (0, 0, 1)
    assert told == [[1, [*place, 4, -1]] for place in zip(stages, microbatches)]


def test_each_block_of_a_pipeline_begins_and_ends(python):
    blocks = python(
        """
        import json
        import laggard, torch, torch.distributed as dist
        from laggard import _attach
        from torch import nn
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        seen = []
        _attach._native.block = lambda begins, passes, place: seen.append([begins, passes, *place])
        dist.init_process_group("gloo")
        stage = PipelineStage(nn.Linear(4, 4), 0, 1, torch.device("cpu"))
        batch = torch.randn(4, 4)
        ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss).step(batch, target=batch)
        print(json.dumps(seen))
        dist.destroy_process_group()
        """,
        **ALONE,
    )
    assert blocks == [
        [begins, passes, 0, microbatch, 1, 0]
        for passes in (0, 1)
        for microbatch in (0, 1)
        for begins in (True, False)
    ]


def test_the_making_of_the_group_of_all_ranks_begins_and_ends(python):
    seen = python(
        """
        import json
        import laggard, torch.distributed as dist
        from laggard import _attach

        seen = []
        _attach._native.init = lambda begins, group, number: seen.append([begins, number])
        for _ in range(2):
            dist.init_process_group("gloo")
            dist.new_group([0])
            dist.destroy_process_group()
        print(json.dumps(seen))
        """,
        **ALONE,
    )
    assert seen == [[True, 1], [False, 1], [True, 2], [False, 2]]


@pytest.mark.parametrize("hooks", ["0", "1"])
def test_groups_that_are_cut_out_of_others_are_watched(hooks, python):
    # Where a job names its device, meshes make all of theirs in this way.
    script = """
    import json
    import laggard, torch.distributed as dist
    from laggard import _attach
    dist.init_process_group("gloo")
    mine = dist.split_group(split_ranks=[[0]], group_desc="mesh_tp")
    try:
        dist.split_group(split_ranks=[[0, 0]])
    except ValueError as error:
        print(error)
    dist.split_group(split_ranks=[[0]], group_desc="mesh_pp")
    named = [(name, members) for _, name, members in _attach._groups]
    print(json.dumps([named, mine in _attach._watched, _attach._roles]))
    dist.destroy_process_group()
    """
    named, is_watched, roles = python(script, LAGGARD_HOOKS=hooks, **ALONE)
    assert ["mesh_tp", "0"] in named and is_watched == (hooks == "1")
    assert roles == {"pp": 0}


def test_a_thread_that_waits_for_the_interpreter_gets_it_before_the_end(python):
    # As gloo's do, which abort the process otherwise.
    done = python(
        """
        import os, sys, threading, time
        import laggard, torch

        sys.setswitchinterval(60)  # nobody has to give the lock away
        asleep = threading.Event()

        def late():
            asleep.set()
            time.sleep(0.05)
            os.write(1, b"true\\n")

        threading.Thread(target=late, daemon=True).start()
        asleep.wait()
        until = time.thread_time() + 0.3
        while time.thread_time() < until:
            pass
        """
    )
    assert done is True


def test_without_hooks_collectives_of_scripts_can_be_compiled(python):
    script = """
    import json
    import laggard, torch, torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    @torch.compile(backend="eager", fullgraph=True)
    def reduced(x):
        dist.all_reduce(x)
        return functional.all_reduce(x, "sum", dist.group.WORLD) + 1
    watched = [hasattr(it.all_reduce, "__wrapped__") for it in (dist, functional)]
    print(json.dumps([watched, reduced(torch.ones(2)).tolist()]))
    """
    assert python(script, LAGGARD_HOOKS="0") == [[True, True], [2.0, 2.0]]


@pytest.mark.parametrize(("theirs", "used"), [({}, "2000"), ({"TORCH_FR_BUFFER_SIZE": "0"}, "0")])
def test_without_hooks_the_flight_recorder_is_switched_on(theirs, used, python):
    script = """
    import json, os
    import laggard, torch.distributed
    print(json.dumps(os.environ.get("TORCH_FR_BUFFER_SIZE")))
    """
    assert python(script, LAGGARD_HOOKS="0", **theirs) == used
    assert python(script, **theirs) == theirs.get("TORCH_FR_BUFFER_SIZE")
