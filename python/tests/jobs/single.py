"""One process, no process group."""

from common import BATCH, Samples, network
from torch import optim
from torch.utils.data import DataLoader

model = network()
optimizer = optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Samples(), batch_size=BATCH):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
