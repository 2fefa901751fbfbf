"""Mixed precision with a scaler that skips some steps because of infinities."""

import torch
import torch.distributed as dist
from common import BATCH, Samples, end, network
from torch import optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
model = DistributedDataParallel(network())
optimizer = optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for step, x in enumerate(DataLoader(Samples(), batch_size=BATCH)):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).square().mean()
    if step % 7 == 3:
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
del model, optimizer
end()
