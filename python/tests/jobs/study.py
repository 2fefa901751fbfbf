"""The controlled study's training: one fault of chosen size at a chosen place and time.

    torchrun --nproc-per-node 4 study.py --fault callback --delay-ms 120 --from 100 --to 200

Knows nothing of laggard. With ``--matrix FILE`` it also measures its own stages with
torch.profiler and leaves them as a stage matrix.
"""

import argparse
import json
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, Dataset

STAGES = {
    "data.next_wait": 0.002,
    "model.fwd_loss_cpu_wall": 0.008,
    "model.backward_cpu_wall": 0.016,
    "callbacks.cpu_wall": 0.0005,
    "optim.step_cpu_wall": 0.003,
}
PLACES = dict(zip(("data", "forward", "backward", "callback", "optim"), STAGES))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=PLACES)
    parser.add_argument("--delay-ms", type=float, default=120.0)
    parser.add_argument("--slow", type=int, default=1, help="the slow rank")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--to", dest="end", type=int, default=10**9)
    parser.add_argument("--barrier", action="store_true", help="behind callback or optimizer")
    parser.add_argument("--backward-ms", type=float, default=16.0)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--matrix")
    return parser.parse_args()


args = parse()
dist.init_process_group("gloo")
rank = dist.get_rank()
usual = {**STAGES, PLACES["backward"]: args.backward_ms / 1e3}
now = 0


def spend(place):
    stage = PLACES[place]
    late = args.fault == place and rank == args.slow and args.first <= now < args.end
    time.sleep(usual[stage] + (args.delay_ms / 1e3 if late else 0.0))


class Samples(Dataset):
    def __len__(self):
        return args.steps * args.accumulation

    def __getitem__(self, index):
        spend("data")
        return torch.ones(16)


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        spend("forward")
        y = self.linear(x)
        y.register_hook(lambda grad: spend("backward"))
        return y


def barrier_after(place):
    if args.barrier and args.fault == place:
        dist.barrier()


class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        spend("optim")
        super().step(closure)
        barrier_after("optim")


def shares_of(events):
    """Seconds of each stage and step, from the profiler's ranges."""
    begins = sorted(e.time_range.start for e in events if e.name == "step")
    rows = [[0.0] * (len(STAGES) + 1) for _ in begins]
    for event in events:
        where = [*STAGES, "step"].index(event.name) if event.name in (*STAGES, "step") else None
        if where is None:
            continue
        step = sum(begin <= event.time_range.start for begin in begins) - 1
        rows[step][where] += event.time_range.elapsed_us() / 1e6
    for row in rows:
        row[-1] -= sum(row[:-1])
    return rows


model = DistributedDataParallel(nn.Sequential(Slow(), nn.Linear(16, 1)))
optimizer = SlowSGD(model.parameters(), lr=0.01)
range_of = record_function if args.matrix else lambda name: nullcontext()
measured = profile(activities=[ProfilerActivity.CPU]) if args.matrix else nullcontext()
with measured as profiler:
    batches = iter(DataLoader(Samples(), batch_size=1))
    for step in range(args.steps):
        now = step  # what spend() asks
        with range_of("step"):
            optimizer.zero_grad()
            for micro in range(args.accumulation):
                with range_of("data.next_wait"):
                    x = next(batches)
                last = micro == args.accumulation - 1
                with nullcontext() if last else model.no_sync():
                    with range_of("model.fwd_loss_cpu_wall"):
                        loss = model(x).square().mean()
                    with range_of("model.backward_cpu_wall"):
                        loss.backward()
            with range_of("optim.step_cpu_wall"):
                optimizer.step()
            with range_of("callbacks.cpu_wall"):
                spend("callback")
                barrier_after("callback")
if args.matrix:
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, shares_of(profiler.events()))
    if rank == 0:
        matrix = [list(ranks) for ranks in zip(*everyone)]
        document = {
            "schema": "stage-matrix/1",
            "unit": "s",
            "stages": [*STAGES, "step.other_cpu_wall"],
            "matrix": matrix,
        }
        with open(args.matrix, "w") as file:
            json.dump(document, file)
del model, optimizer
dist.barrier()
dist.destroy_process_group()
