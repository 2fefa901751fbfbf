"""The same with loader processes, which fork."""

import torch.distributed as dist
from common import BATCH, Samples, end, network
from torch import optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
model = DistributedDataParallel(network())
optimizer = optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Samples(), batch_size=BATCH, num_workers=1, prefetch_factor=1):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
del model, optimizer
end()
