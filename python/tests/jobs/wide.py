"""DDP with much to exchange, until it is ended."""

import itertools
import time

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)))
optimizer = optim.SGD(model.parameters(), lr=0.01)
for _ in itertools.count():
    optimizer.zero_grad()
    model(torch.randn(4, 1024)).square().mean().backward()
    optimizer.step()
    time.sleep(0.01)
