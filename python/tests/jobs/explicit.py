"""A loop that says its stages itself."""

import time

import laggard
import torch
import torch.distributed as dist
from common import STEPS, delay_here, end, network
from torch import optim
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(network())
optimizer = optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):
    with laggard.step():
        with laggard.stage("data.next_wait"):
            x = torch.randn(2, 16)
        with laggard.stage("tokenise"):
            delay_here()
        time.sleep(0.0002)
        with laggard.stage("model.fwd_loss_cpu_wall"):
            loss = model(x).square().mean()
        with laggard.stage("model.backward_cpu_wall"):
            loss.backward()
        with laggard.stage("optim.step_cpu_wall"):
            optimizer.step()
            optimizer.zero_grad()
del model, optimizer, loss
end()
