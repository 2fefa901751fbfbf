"""Hugging Face Accelerate around a loop of one's own."""

from accelerate import Accelerator
from common import BATCH, STEPS, Samples, end, network
from torch import optim
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
model = network()
optimizer = optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Samples(STEPS * accelerator.num_processes), batch_size=BATCH)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x in loader:
    optimizer.zero_grad()
    accelerator.backward(model(x).square().mean())
    optimizer.step()
del model, optimizer, loader
end()
