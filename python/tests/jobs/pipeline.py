"""A pipeline of eight microbatches, a stage or two on each rank, one block of which may be slow.

TIMES is a folder in which each rank leaves what its blocks took by a clock of its own, as lines of
step, pass, and seconds.

torchrun --nproc-per-node 4 pipeline.py [schedule]
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from blocks import Part, Work, run_schedule
from common import STEPS
from torch import nn, optim
from torch.distributed import pipelining

MICROBATCHES, WIDTH = 8, 32
TIMES = os.environ.get("TIMES")
times = []


class Timed(pipelining.PipelineStage):
    """Takes the time of its blocks: on a busy machine they are slow without anybody's doing."""

    def forward_one_chunk(self, *args, **kwargs):
        return self.timed("F", super().forward_one_chunk, *args, **kwargs)

    def backward_one_chunk(self, *args, **kwargs):
        return self.timed("B", super().backward_one_chunk, *args, **kwargs)

    def timed(self, passes, block, *args, **kwargs):
        begin = time.monotonic()
        result = block(*args, **kwargs)
        times.append((works[0].step, passes, time.monotonic() - begin))
        return result


dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
name = sys.argv[1] if len(sys.argv) > 1 else "1F1B"
chunks = 2 if "Interleaved" in name else 1
device = torch.device("cpu")
places = [rank + chunk * ranks for chunk in range(chunks)]
works = [Work(place) for place in places]
parts = [Part(WIDTH, work) for work in works]
stages = [
    Timed(part, place, chunks * ranks, device) for part, place in zip(parts, places, strict=True)
]
kind = getattr(pipelining, f"Schedule{name}")
held = stages if chunks > 1 else stages[0]
schedule = kind(held, MICROBATCHES, loss_fn=nn.functional.mse_loss)
parameters = [parameter for part in parts for parameter in part.parameters()]
optimizer = optim.SGD(parameters, lr=0.01)
for step in range(STEPS):
    for work in works:
        work.begin(step)
    optimizer.zero_grad()
    x = torch.randn(MICROBATCHES * 2, WIDTH)
    run_schedule(schedule, rank, ranks, x)
    optimizer.step()
if TIMES:
    with open(f"{TIMES}/{rank}", "w") as file:
        file.writelines(f"{step} {passes} {took}\n" for step, passes, took in times)
dist.barrier()
dist.destroy_process_group()
