"""Tensor-parallel ranks on an accelerator: they wait for each other within their passes.

The kernels of ``SLOW_RANK`` take ``FACTOR`` times as long. The loss is read every tenth step.
"""

import os
import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from common import end
from torch import nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1]))
if torch.cuda.is_available():
    import card as accelerator
else:
    import accelerator

STEPS, WIDTH, BATCH = int(os.environ.get("STEPS", "80")), 16, 8
SLOW_RANK, FACTOR = int(os.environ.get("SLOW_RANK", "1")), float(os.environ.get("FACTOR", "2"))
# What a block takes on the device, in seconds.
SECONDS = {"forward": 0.004, "backward": 0.006}

dist.init_process_group(accelerator.BACKEND)
noise = random.Random(dist.get_rank())
device = torch.device(accelerator.NAME)
if dist.get_rank() == SLOW_RANK:
    accelerator.pace(FACTOR)


def launch(phase):
    accelerator.spend(SECONDS[phase] * noise.uniform(0.97, 1.03), phase)


class Kernels(torch.autograd.Function):
    """Takes time on the device, on the way forward and on the way back."""

    @staticmethod
    def forward(ctx, x):
        launch("forward")
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        launch("backward")
        return gradient


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.columns, self.rows = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.rows(Kernels.apply(self.columns(x)).tanh())


torch.manual_seed(0)
model = nn.Sequential(*(Block() for _ in range(3))).to(device)
mesh = init_device_mesh(accelerator.NAME, (dist.get_world_size(),))
for block in model:
    parallelize_module(block, mesh, {"columns": ColwiseParallel(), "rows": RowwiseParallel()})
optimizer = optim.SGD(model.parameters(), lr=0.001, foreach=False)
# All of them see the same samples.
samples = TensorDataset(torch.randn(STEPS * BATCH, WIDTH))
for step, (x,) in enumerate(DataLoader(samples, batch_size=BATCH)):
    optimizer.zero_grad()
    loss = model(x.to(device)).square().mean()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        loss.item()
del model, optimizer
end()
