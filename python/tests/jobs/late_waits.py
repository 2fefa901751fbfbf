"""A data-parallel loop whose device runs behind its host, as it does with NCCL.

The host issues its all-reduces with ``async_op=True`` and runs on. What it launches is worked
off by a thread, in order: sleeps for kernels, and a meeting with the other ranks' threads for
each all-reduce. The host waits only where it reads something back, or where the launch queue
is full.

``FAULT`` strikes ``SLOW_RANK`` for ``DELAY`` seconds: loader, forward, callback, launches,
pause (one step in 25, five times as long), device (its kernels take 1.5 times as long) or none.
There may be several, each with a rank and seconds of its own: ``loader@1@0.04,callback@3@0.02``.
With ``TURN``, sets of faults that ``/`` separates strike in turn, each for so many steps.
``READ`` is where the loss is read: after the optimizer, before it, ten (every tenth step),
never, or clip (inside the optimizer, which clips gradients).
``QUEUE`` launches fit the queue, and the device takes ``TIMES`` times as long as usual.
"""

import mmap
import os
import queue
import random
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from common import BATCH, Turns, end, own_faults
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "65"))
SLOW_RANK = int(os.environ.get("SLOW_RANK", "2"))
DELAY = float(os.environ.get("DELAY", "0.06"))
FAULT, READ = os.environ.get("FAULT", "none"), os.environ.get("READ", "after")
SINCE = int(os.environ.get("SINCE", "0"))
SEED, TURN = int(os.environ.get("SEED", "1")), int(os.environ.get("TURN", "0"))
# What a step takes on the device and on the host, in seconds; launches the host may be ahead.
TIMES = float(os.environ.get("TIMES", "1"))
DEVICE = {"forward": 0.012 * TIMES, "backward": 0.010 * TIMES, "optimizer": 0.005 * TIMES}
HOST = {"data": 0.002, "forward": 0.003, "backward": 0.002, "optimizer": 0.001, "callback": 0.001}
QUEUE = int(os.environ.get("QUEUE", "24"))

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
noise = random.Random(1000 * SEED + rank)
step = 0


def spend(seconds):
    time.sleep(seconds * noise.uniform(0.95, 1.05))


def struck(place):
    """Seconds that the host is late by here."""
    if step < SINCE:
        return 0.0
    if place == "pause":
        return 5 * faults.get(place, 0.0) if step % 25 == 12 else 0.0
    return faults.get(place, 0.0)


class Meeting:
    """Where the devices of all ranks wait for one another: counters in a file that all map."""

    def __init__(self):
        place = Path(f"/dev/shm/late-waits-{os.environ['MASTER_PORT']}")
        if rank == 0:
            place.write_bytes(bytes(8 * ranks))
        dist.barrier()
        with place.open("r+b") as file:
            self.counts = memoryview(mmap.mmap(file.fileno(), 8 * ranks)).cast("q")
        dist.barrier()
        if rank == 0:
            place.unlink()

    def wait(self):
        self.counts[rank] += 1
        while min(self.counts) < self.counts[rank]:
            time.sleep(0.0003)


class Device(threading.Thread):
    """Works off what is launched, in order."""

    def __init__(self):
        super().__init__(daemon=True)
        self.queue, self.meeting = queue.Queue(QUEUE), Meeting()
        self.pace = 1.5 if "device" in faults else 1.0
        self.start()

    def run(self):
        while True:
            work = self.queue.get()
            work()
            self.queue.task_done()

    def launch(self, seconds):
        seconds *= self.pace
        self.queue.put(lambda: time.sleep(seconds))

    def all_reduce(self, tensor):
        work = dist.all_reduce(tensor, async_op=True)

        def meet():
            work.wait()
            self.meeting.wait()

        self.queue.put(meet)

    def synchronize(self):
        self.queue.join()


class Samples(Dataset):
    """Random samples; the first of each batch takes a moment to load."""

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        if index % BATCH == 0:
            spend(HOST["data"])
            time.sleep(struck("loader"))
        return torch.randn(16, generator=torch.Generator().manual_seed(index))


class Layer(nn.Linear):
    """Launches its kernels in pieces, on the way forward and on the way back."""

    def forward(self, x):
        late = struck("forward") / LAYERS + struck("launches") / LAYERS / 2
        for _ in range(2):
            spend(HOST["forward"] / LAYERS / 2 + late / 2)
            device.launch(DEVICE["forward"] / LAYERS / 2)
        return super().forward(x)

    def reduce(self, gradient):
        spend(HOST["backward"] / LAYERS + struck("launches") / LAYERS / 2)
        device.launch(DEVICE["backward"] / LAYERS)
        device.all_reduce(gradient.clone())


class SGD(optim.SGD):
    """Clips gradients where the norm is read back to do so."""

    def step(self, closure=None):
        if READ == "clip":
            device.synchronize()
        spend(HOST["optimizer"])
        device.launch(DEVICE["optimizer"])
        return super().step(closure)


LAYERS = 3
faults = own_faults(rank, FAULT.split("/")[0], SLOW_RANK, DELAY)
device = Device()
turns = Turns(FAULT, TURN or STEPS, device.synchronize)
model = nn.Sequential(*(Layer(16, 16) for _ in range(LAYERS)), nn.Linear(16, 1))
for layer in model[:LAYERS]:
    layer.weight.register_hook(layer.reduce)
optimizer = SGD(model.parameters(), lr=0.01)
began = time.monotonic()
for step, x in enumerate(DataLoader(Samples(), batch_size=BATCH), start=1):  # noqa: B007
    if step == 6:
        began = time.monotonic()
    if struck_now := turns.begin(step):
        faults = own_faults(rank, struck_now, SLOW_RANK, DELAY)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    if READ == "before":
        device.synchronize()
    optimizer.step()
    time.sleep(struck("pause"))
    if READ == "after" or (READ == "ten" and step % 10 == 0):
        device.synchronize()
    spend(HOST["callback"])
    time.sleep(struck("callback"))
device.synchronize()
if rank == 0:
    print(f"a step took {(time.monotonic() - began) / (STEPS - 5) * 1e3:.2f} ms", flush=True)
    turns.print()
end()
