"""Gradient accumulation over four batches; only the last synchronises."""

from contextlib import nullcontext

import torch.distributed as dist
from common import BATCH, STEPS, Samples, end, network
from torch import optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
model = DistributedDataParallel(network())
optimizer = optim.SGD(model.parameters(), lr=0.01)
for micro, x in enumerate(DataLoader(Samples(4 * STEPS), batch_size=BATCH), 1):
    last = micro % 4 == 0
    with nullcontext() if last else model.no_sync():
        model(x).square().mean().backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
del model, optimizer
end()
