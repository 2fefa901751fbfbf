"""What laggard costs a training process. Prints a table and keeps the raw pairs.

    python cost.py [--traceml BIN] [--pairs FILE]

1. A stage context in a loop, beside an empty ``with`` block in pure Python.
2. The automatic attach: main-thread CPU time per step of a one-rank training step of about
   2 ms. Blocks of steps without hooks, with hooks in the same places that do nothing, and with
   ours take turns inside one process, so that all see the same machine.
3. The same hooks around a step that does next to nothing, whose code and data stay in the cache.
4. The hook on collectives: an all-reduce of four numbers in a group of one rank.
5. Whole commands, in turns: the training alone, under ``laggard run``, and under TraceML.
6. Four ranks of DDP over gloo, whole commands in turns: wall time per step of rank 0, alone and
   under ``laggard run``. ``--only ddp`` measures nothing else.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
LOOPS, REPEATS = 20_000, 21
BLOCK, SMALL_BLOCK, BLOCK_PAIRS = 25, 200, 400
COMMAND_ROUNDS = 25


class Empty:
    """The cheapest context a pure-Python tool could have."""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False


def ns_per_loop(loop):
    began = time.perf_counter_ns()
    loop()
    return (time.perf_counter_ns() - began) / LOOPS


def context_cost():
    import laggard

    def staged():
        for _ in range(LOOPS):
            with laggard.stage("optim.step_cpu_wall"):
                pass

    def empty():
        for _ in range(LOOPS):
            with Empty():
                pass

    def bare():
        for _ in range(LOOPS):
            pass

    with laggard.step():
        rounds = [[ns_per_loop(loop) for loop in (staged, empty, bare)] for _ in range(REPEATS)]
    return {"unit": "ns", "columns": ["laggard.stage", "empty with", "bare loop"], "rows": rounds}


class EmptyProxy:
    """The cheapest stand-in for the autograd engine."""

    __slots__ = ("_engine",)

    def __init__(self, engine):
        self._engine = engine

    def run_backward(self, *args, **kwargs):
        return self._engine.run_backward(*args, **kwargs)


def empty_next(original):
    def __next__(self):
        return original(self)

    return __next__


def empty_hook(optimizer, args, kwargs):
    pass


class Hooks:
    """Everything the attach set on the path of a step, to take off and put on again."""

    def __init__(self, torch):
        from torch.autograd.variable import Variable
        from torch.optim import optimizer
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        self.places = [(_BaseDataLoaderIter, "__next__"), (Variable, "_execution_engine")]
        self.bare = [vars(owner)[name] for owner, name in self.places]
        import laggard  # noqa: F401  (attaches)

        self.empty = [empty_next(self.bare[0]), EmptyProxy(self.bare[1])]
        self.ours = [vars(owner)[name] for owner, name in self.places]
        assert all(ours is not bare for ours, bare in zip(self.ours, self.bare))
        globals_of = vars(optimizer)
        self.tables = [
            globals_of["_global_optimizer_pre_hooks"],
            globals_of["_global_optimizer_post_hooks"],
        ]
        self.entries = [dict(table) for table in self.tables]
        assert all(self.entries)

    def put(self, which):
        for (owner, name), value in zip(self.places, getattr(self, which)):
            setattr(owner, name, value)
        of_optimizer = {"bare": {}, "empty": {0: empty_hook}}
        for table, ours in zip(self.tables, self.entries):
            table.clear()
            table.update(of_optimizer.get(which, ours))


def in_turns(hooks, us_per_step):
    """Blocks of steps with each kind of hooks; the order changes, so that drift takes no side."""
    kinds = ["bare", "empty", "ours"]
    for kind in kinds * 4:
        us_per_step(kind)
    rows = []
    for round_ in range(BLOCK_PAIRS):
        turned = round_ % len(kinds)
        order = kinds[turned:] + kinds[:turned]
        cost = {kind: us_per_step(kind) for kind in order}
        rows.append([cost[kind] for kind in kinds])
    from laggard import _native

    assert _native.is_active(), "the hooks record"
    return {"unit": "us", "columns": ["without", "empty", "with"], "rows": rows}


def hook_cost():
    """Steps that do next to nothing: what the hooks cost where nothing else is in the cache."""
    import torch

    hooks = Hooks(torch)
    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter])
    loss = parameter * 2
    batches = torch.utils.data.DataLoader([0] * SMALL_BLOCK, batch_size=None)

    def us_per_step(kind):
        hooks.put(kind)
        steps = iter(batches)
        began = time.thread_time_ns()
        for _ in range(SMALL_BLOCK):
            next(steps)
            loss.backward(retain_graph=True)
            optimizer.step()
        return (time.thread_time_ns() - began) / SMALL_BLOCK / 1e3

    return in_turns(hooks, us_per_step)


def collective_cost():
    """The hook on a process group of one rank, taken off and put on again."""
    import torch
    import torch.distributed as dist
    from laggard import _attach, _native

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    (group,) = dist.distributed_c10d._world.pg_map
    value = torch.ones(4)

    def us_per_call(on):
        group.unregister_pre_hook(_attach._HOOK_ID)
        if on:
            group.register_pre_hook(
                _attach._HOOK_ID, _native.CollectiveHook(1, vars(dist.distributed_c10d))
            )
        began = time.thread_time_ns()
        for _ in range(SMALL_BLOCK):
            dist.all_reduce(value)
        return (time.thread_time_ns() - began) / SMALL_BLOCK / 1e3

    rows = []
    for pair in range(BLOCK_PAIRS):
        order = (True, False) if pair % 2 else (False, True)
        cost = {on: us_per_call(on) for on in order}
        rows.append([cost[False], cost[True]])
    assert _native.is_active(), "the hook records"
    group.unregister_pre_hook(_attach._HOOK_ID)
    dist.destroy_process_group()
    return {"unit": "us", "columns": ["without", "with"], "rows": rows}


def attach_cost():
    import torch
    from torch import nn

    hooks = Hooks(torch)
    torch.set_num_threads(1)
    parts = [part for _ in range(4) for part in (nn.Linear(240, 240), nn.ReLU())]
    model = nn.Sequential(*parts)
    optimizer = torch.optim.Adam(model.parameters())
    batches = torch.utils.data.TensorDataset(torch.randn(128 * BLOCK, 240))
    loader = torch.utils.data.DataLoader(batches, batch_size=128)

    def cpu_us_per_step(kind):
        hooks.put(kind)
        steps = iter(loader)
        times = []
        for _ in range(BLOCK):
            began = time.thread_time_ns()
            (x,) = next(steps)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            times.append((time.thread_time_ns() - began) / 1e3)
        return statistics.median(times)

    return in_turns(hooks, cpu_us_per_step)


def in_rounds(commands, key):
    """Whole commands in turns; of each the median it prints of its steps."""

    def median(command):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        lines = (done.stdout + done.stderr).splitlines()
        found = [line[line.index('{"cpu_us"') :] for line in lines if '{"cpu_us"' in line]
        assert found, done.stderr
        return json.loads(found[-1])[key]

    rows = []
    for round_ in range(COMMAND_ROUNDS):
        order = list(commands) if round_ % 2 else list(reversed(commands))
        found = {name: median(commands[name]) for name in order}
        rows.append([found[name] for name in commands])
    return {"unit": "us", "columns": list(commands), "rows": rows}


def launched(ranks):
    """The training step on so many ranks, alone and under laggard."""
    script = str(HERE / "step.py")
    launch = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(ranks), script]
    return {"alone": launch, "laggard": [str(BIN / "laggard"), "run", "--", *launch]}


def command_cost(traceml):
    commands = launched(1)
    if traceml:
        options = ["--nproc-per-node", "1", "--save-training-output", "--args", "--traceml"]
        script = commands["alone"][-1]
        commands["TraceML"] = [str(Path(traceml) / "traceml"), "run", script, *options]
    return in_rounds(commands, "cpu_us")


def ddp_cost():
    return in_rounds(launched(4), "wall_us")


def print_commands(what, table):
    usual = statistics.median(columns(table)["alone"])
    for name in table["columns"][1:]:
        added = differences(table, name, "alone")
        print(f"{name}, {what} in turns: {said(added, 'us')} of a step of {usual:.0f} us")
        print("  pairs " + " ".join(f"{value:+.0f}" for value in added))


def columns(table):
    return dict(zip(table["columns"], zip(*table["rows"])))


def differences(table, name, base):
    values = columns(table)
    return [a - b for a, b in zip(values[name], values[base])]


def said(values, unit):
    middle = statistics.median(values)
    quarters = statistics.quantiles(values, n=4)
    return f"{middle:+.1f} {unit} (quartiles {quarters[0]:+.1f} to {quarters[2]:+.1f})"


def measure_in_child(part, rings):
    """Runs one part in a process of its own that records into a ring."""
    # The import attaches, not the environment: the bare functions are to be had before.
    environment = {**os.environ, "LAGGARD_DIR": rings}
    environment.pop("LAGGARD_ENABLE", None)
    command = [sys.executable, __file__, "--part", part]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


PARTS = {
    "context": context_cost,
    "attach": attach_cost,
    "hooks": hook_cost,
    "collective": collective_cost,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traceml", help="folder with the traceml command")
    parser.add_argument("--pairs", help="file for the raw pairs (JSON)")
    parser.add_argument("--only", choices=["ddp"], help="measure one thing")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(PARTS[args.part]()))
        return
    if args.only:
        print_commands("four ranks", ddp_cost())
        return
    with tempfile.TemporaryDirectory() as rings:
        context = measure_in_child("context", rings)
        attach = measure_in_child("attach", rings)
        hooks = measure_in_child("hooks", rings)
        collective = measure_in_child("collective", rings)
    for name, values in columns(context).items():
        print(f"{name:14} {statistics.median(values):7.0f} ns a loop")
    for name, table in (("attach", attach), ("its hooks alone", hooks)):
        usual = statistics.median(columns(table)["without"])
        print(f"{name}, blocks in turns, on a step of {usual:.0f} us")
        for kind in ("with", "empty"):
            print(f"  {kind:5} {said(differences(table, kind, 'without'), 'us')}")
    usual = statistics.median(columns(collective)["without"])
    added = differences(collective, "with", "without")
    print(f"collective hook, blocks in turns: {said(added, 'us')} of a call of {usual:.0f} us")
    commands = command_cost(args.traceml)
    print_commands("whole commands", commands)
    ddp = ddp_cost()
    print_commands("four ranks", ddp)
    if args.pairs:
        found = {
            "context": context,
            "attach": attach,
            "hooks": hooks,
            "collective": collective,
            "commands": commands,
            "ddp": ddp,
        }
        Path(args.pairs).write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
