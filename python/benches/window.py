"""What a profile window costs a job, beside plain ``torch.profiler`` over as many steps.

    python window.py [--rounds N] [--pairs FILE] [--operators N] [--calls N]

Two ranks of a small transformer over gloo. In turns a job under ``laggard run`` that is profiled by
``laggard profile``, and the same job that profiles as many steps itself, with stacks, and writes
the trace. Medians of rank 0's steps before, inside and after, and how long its loop stood still.
Each step may have more operators, or calls of functions, which profilers pay for one by one.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
RANKS, STEPS, FIRST, WINDOW = 2, 400, 120, 10
# Steps at the beginning that are not counted.
WARM_UP = 20


def job(folder, plain, operators, calls):
    """One rank."""
    import torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    model = nn.parallel.DistributedDataParallel(nn.TransformerEncoder(layer, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(torch.randn(STEPS * 8, 16, 64), batch_size=8)
    profiler = torch.profiler.profile(with_stack=True) if plain else None
    few = torch.ones(4)
    ends, stall = [], 0.0
    for step, batch in enumerate(loader):
        began = time.perf_counter()
        if profiler and step == FIRST:
            profiler.start()
        if profiler and step == FIRST + WINDOW:
            profiler.stop()
            profiler.export_chrome_trace(f"{folder}/trace{dist.get_rank()}.json")
        stall += time.perf_counter() - began
        for _ in range(operators):
            few.add(1)
        for _ in range(calls):
            time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        ends.append(time.perf_counter())
        if step == 4 * WARM_UP:
            Path(folder, "warm").touch()
    if dist.get_rank() == 0:
        Path(folder, "rank0.json").write_text(json.dumps({"ends": ends, "stall": stall}))
    dist.destroy_process_group()


def torchrun(folder, kind, more):
    command = [BIN / "torchrun", "--standalone", f"--nproc-per-node={RANKS}", __file__, *more]
    return [*command, "--job", folder, *(["--plain"] if kind == "plain" else [])]


def measure(kind, more):
    """Medians before, inside and after, in seconds, and the time the loop stood still."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        if kind == "plain":
            subprocess.run(
                torchrun(folder, kind, more), env=environment, check=True, capture_output=True
            )
            ran = json.loads(Path(folder, "rank0.json").read_text())
            first, last, stall = FIRST, FIRST + WINDOW, ran["stall"]
        else:
            rings, config = Path(folder, "rings"), Path(folder, "laggard.toml")
            config.write_text("[profile]\nenabled = false\n")
            environment |= {"LAGGARD_DIR": str(rings), "LAGGARD_CONFIG": str(config)}
            run = [BIN / "laggard", "run", "--", *torchrun(folder, kind, more)]
            job = subprocess.Popen(run, env=environment, stderr=subprocess.DEVNULL)
            # A window of the first steps has none before it to compare with.
            while not Path(folder, "warm").exists() and job.poll() is None:
                time.sleep(0.1)
            verdict = asked(environment, job)
            assert job.wait() == 0
            ran = json.loads(Path(folder, "rank0.json").read_text())
            (note,) = (note for note in verdict["notes"] if " were profiled on " in note)
            first, last = (int(n) for n in re.match(r"steps (\d+)-(\d+) ", note).groups())
            times = r"for ([\d.]+) s to start and stop the profiler, and for ([\d.]+) s to"
            seconds = re.search(times, note)
            # Steps are numbered from 0; those in which it starts and stops are neither.
            last, stall = last + 1, sum(float(s) for s in seconds.groups())
    lasted = [b - a for a, b in zip(ran["ends"], ran["ends"][1:])]
    lasted = [None, *lasted]
    parts = [lasted[WARM_UP:first], lasted[first + 1 : last], lasted[last + 2 :]]
    return [*(statistics.median(part) for part in parts), stall]


def asked(environment, job):
    """The verdict with the window, asked for once the job steps."""
    while job.poll() is None:
        command = [BIN / "laggard", "profile", "--json", f"--ranks=0-{RANKS - 1}"]
        told = subprocess.run(command, env=environment, capture_output=True, text=True)
        if told.returncode == 0:
            return json.loads(told.stdout)
        time.sleep(0.5)
    raise SystemExit(f"the job ended before it was profiled: {told.stderr}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=Path, help="file for the raw rows, as JSON")
    parser.add_argument("--operators", type=int, default=0, help="more of them in each step")
    parser.add_argument("--calls", type=int, default=0, help="more of them in each step")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        job(args.job, args.plain, args.operators, args.calls)
        return
    more = [f"--operators={args.operators}", f"--calls={args.calls}"]
    rows = {"laggard": [], "plain": []}
    for _ in range(args.rounds):
        for kind, measured in rows.items():
            measured.append(measure(kind, more))
            before, inside, after, stall = measured[-1]
            print(
                f"{kind:8}  step {before * 1e3:6.1f} ms  inside {inside / before:.2f}  "
                f"after {after / before:.2f}  stood still {stall:.2f} s"
            )
    if args.pairs:
        columns = ["before s", "inside s", "after s", "stall s"]
        args.pairs.write_text(json.dumps({"columns": columns, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
