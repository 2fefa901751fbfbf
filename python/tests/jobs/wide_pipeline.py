"""A pipeline that hands much on, until it is ended."""

import itertools
import time

import torch
import torch.distributed as dist
from blocks import run_schedule
from torch import nn, optim
from torch.distributed import pipelining

MICROBATCHES, WIDTH = 8, 16384


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        time.sleep(0.01)
        return x * self.weight


dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
stage = pipelining.PipelineStage(Part(), rank, ranks, torch.device("cpu"))
schedule = pipelining.Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
optimizer = optim.SGD(stage.submod.parameters(), lr=0.01)
x = torch.ones(MICROBATCHES * 32, WIDTH)
for _ in itertools.count():
    optimizer.zero_grad()
    run_schedule(schedule, rank, ranks, x)
    optimizer.step()
