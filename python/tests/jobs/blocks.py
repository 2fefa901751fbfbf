"""The part of a pipeline that a rank has, and how long its blocks take.

SLOW_BLOCK names one that takes DELAY seconds more: stage of the model, pass (F or B), microbatch,
first step, last step.
"""

import os
import time

import torch
from torch import nn

BLOCK_S = {"F": 0.01, "B": 0.02}
SLOW = os.environ.get("SLOW_BLOCK", "").split(",")
DELAY = float(os.environ.get("DELAY", "0.2"))


class Work:
    """Takes a block's time, and what is added to the slow one."""

    def __init__(self, stage):
        self.stage = stage

    def begin(self, step):
        self.step, self.blocks = step, {"F": -1, "B": -1}

    def __call__(self, passes):
        self.blocks[passes] += 1
        time.sleep(BLOCK_S[passes])
        if len(SLOW) < 5 or passes != SLOW[1]:
            return
        stage, microbatch, first, last = (int(SLOW[at]) for at in (0, 2, 3, 4))
        here = self.stage == stage and self.blocks[passes] == microbatch
        if here and first <= self.step <= last:
            time.sleep(DELAY)


class Part(nn.Module):
    """Calls `work` with "F" in each forward and with "B" in each backward."""

    def __init__(self, width, work):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.work = work

    def forward(self, x):
        return _Work.apply(self.layer(x), self.work)


class _Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, work):
        ctx.work = work
        work("F")
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.work("B")
        return gradient, None


def run_schedule(schedule, place, stages, x):
    """A step of the rank at this place of so many; what goes in is what is to come out."""
    if place == 0:
        schedule.step(x)
    elif place == stages - 1:
        schedule.step(target=x)
    else:
        schedule.step()
