"""Two models, two optimizers, two backward passes on one batch."""

import torch
import torch.distributed as dist
from common import BATCH, Samples, end, network
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
critic = DistributedDataParallel(network())
maker = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh()))
of_critic = optim.Adam(critic.parameters(), lr=0.01)
of_maker = optim.Adam(maker.parameters(), lr=0.01)
for x in DataLoader(Samples(), batch_size=BATCH):
    made = maker(torch.randn(2, 8))
    of_critic.zero_grad()
    (critic(made.detach()).mean() - critic(x).mean()).backward()
    of_critic.step()
    of_maker.zero_grad()
    (-critic(made).mean()).backward()
    of_maker.step()
del critic, maker, of_critic, of_maker
end()
