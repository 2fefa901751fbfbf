"""Fully sharded data parallelism, second generation."""

import torch.distributed as dist
from common import BATCH, Samples, end, network
from torch import optim
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
model = network()
for layer in model:
    if any(True for _ in layer.parameters()):
        fully_shard(layer)
fully_shard(model)
optimizer = optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Samples(), batch_size=BATCH):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
del model, optimizer
end()
