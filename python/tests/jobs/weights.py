"""A deterministic DDP training that saves its weights and may leave in odd ways."""

import os
import signal
import threading

import torch
import torch.distributed as dist
from common import BATCH, STEPS, Samples, delay_here
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

if "RING_DIRS" in os.environ:  # one for each rank
    os.environ["LAGGARD_DIR"] = os.environ["RING_DIRS"].split(":")[int(os.environ["RANK"])]
# The step in which something else than training is done.
ODD_STEP = 20
LEAVE = os.environ.get("LEAVE", "").split(",")


def save(model, path):
    state = [value.tolist() for value in model.module.state_dict().values()]
    with open(path + ".new", "w") as file:
        file.write(repr(state))
    os.rename(path + ".new", path)


dist.init_process_group("gloo")
torch.manual_seed(7)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
optimizer = optim.Adam(model.parameters(), lr=0.01)
shift = dist.get_rank() * 1000
told_to_end = threading.Event()
if "SIGTERM" in LEAVE:
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.set())
for step, x in enumerate(DataLoader(Samples(STEPS), batch_size=BATCH)):
    delay_here()
    if step == ODD_STEP and dist.get_rank() == 0:
        save(model, f"{os.environ['SAVE']}.early")
    if step == ODD_STEP and "SIGTERM" in LEAVE:
        # The same step whenever the signal comes, so that the weights can be compared.
        open(f"{os.environ['SAVE']}.rank{dist.get_rank()}", "w").close()
        told_to_end.wait()
        break
    optimizer.zero_grad()
    (model(x + shift).square().mean() + torch.rand(())).backward()
    optimizer.step()
    if step >= ODD_STEP and "fork" in LEAVE and os.fork() == 0:
        # A child that trains a little by itself, in the image of a rank.
        own = nn.Linear(2, 1)
        by = optim.SGD(own.parameters(), lr=0.1)
        own(torch.ones(1, 2)).sum().backward()
        os._exit(0)
if dist.get_rank() == 0:
    save(model, os.environ["SAVE"])
dist.barrier()
if "os._exit" in LEAVE:
    os._exit(0)
del model, optimizer
dist.barrier()
dist.destroy_process_group()
