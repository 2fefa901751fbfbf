"""A pipeline of four stages and eight microbatches, one block of which may be slow.

SLOW_BLOCK names it: stage, pass (F or B), microbatch, first step, last step.

torchrun --nproc-per-node 4 pipeline.py
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from blocks import Part
from common import STEPS
from torch import nn, optim
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

MICROBATCHES, WIDTH = 8, 32
BLOCK_S = 0.01
SLOW = os.environ.get("SLOW_BLOCK", "").split(",")
DELAY = float(os.environ.get("DELAY", "0.2"))
current = {"step": 0, "F": -1, "B": -1}


def work(passes):
    """A block's time, and what is added to the slow one."""
    current[passes] += 1
    time.sleep(BLOCK_S if passes == "F" else 2 * BLOCK_S)
    if len(SLOW) < 5 or passes != SLOW[1]:
        return
    stage, microbatch, first, last = (int(SLOW[at]) for at in (0, 2, 3, 4))
    here = dist.get_rank() == stage and current[passes] == microbatch
    if here and first <= current["step"] <= last:
        time.sleep(DELAY)


schedules = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}
dist.init_process_group("gloo")
rank, stages = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
part = Part(WIDTH, work)
stage = PipelineStage(part, rank, stages, torch.device("cpu"))
kind = schedules[sys.argv[1] if len(sys.argv) > 1 else "1F1B"]
schedule = kind(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
optimizer = optim.SGD(part.parameters(), lr=0.01)
for step in range(STEPS):
    current.update(step=step, F=-1, B=-1)
    optimizer.zero_grad()
    x = torch.randn(MICROBATCHES * 2, WIDTH)
    if rank == 0:
        schedule.step(x)
    elif rank == stages - 1:
        schedule.step(target=x)
    else:
        schedule.step()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
