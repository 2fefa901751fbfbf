"""Two pipelines of two stages, ranks 0-1 and 2-3; gradients are summed over 0,2 and 1,3.

With "tensor" ranks 0,2 and 1,3 share a stage instead, and meet in each block.

SLOW_BLOCKS names a rank whose blocks are slow: rank, pass (F or B), first step, last step.

torchrun --nproc-per-node 4 pipelines.py [data|tensor]
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from blocks import Part, run_schedule
from common import DELAY, STEPS
from torch import nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

MICROBATCHES, WIDTH = 4, 32
BLOCK_S = {"F": 0.005, "B": 0.01}
SLOW = os.environ.get("SLOW_BLOCKS", "").split(",")
TENSOR = "tensor" in sys.argv[1:]
current = {"step": 0}


def work(passes):
    """A block's time, and what is added to slow ones."""
    time.sleep(BLOCK_S[passes])
    here = len(SLOW) == 4 and passes == SLOW[1] and dist.get_rank() == int(SLOW[0])
    if here and int(SLOW[2]) <= current["step"] <= int(SLOW[3]):
        time.sleep(DELAY)
    if TENSOR:
        dist.all_reduce(torch.zeros(1), group=copies)


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
pipeline, copies = mesh["pp"].get_group(), mesh["dp"].get_group()
place = dist.get_rank(pipeline)
torch.manual_seed(place)
part = Part(WIDTH, work)
stage = PipelineStage(part, place, 2, torch.device("cpu"), group=pipeline)
schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
optimizer = optim.SGD(part.parameters(), lr=0.01)
for step in range(STEPS):
    current["step"] = step
    optimizer.zero_grad()
    x = torch.randn(MICROBATCHES * 2, WIDTH)
    run_schedule(schedule, place, 2, x)
    if not TENSOR:
        for parameter in part.parameters():
            dist.all_reduce(parameter.grad, group=copies)
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
