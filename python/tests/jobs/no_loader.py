"""A loop that makes its batches itself."""

import torch
import torch.distributed as dist
from common import STEPS, delay_here, end, network
from torch import optim
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(network())
optimizer = optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):
    delay_here()
    x = torch.randn(2, 16)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
del model, optimizer
end()
