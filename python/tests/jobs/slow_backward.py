"""DDP whose slow rank is slow in a gradient hook."""

import torch.distributed as dist
from common import BATCH, Samples, delay_here, end, network
from torch import optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
network = network()
network[0].weight.register_hook(lambda grad: delay_here())
model = DistributedDataParallel(network)
optimizer = optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Samples(slow=False), batch_size=BATCH):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
del model, optimizer
end()
