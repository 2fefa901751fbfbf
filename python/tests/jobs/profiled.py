"""A plain DDP loop with a fault in one of its functions: argument FAULT, environment SLOW_RANK, -1
for all ranks, from step FROM on. USER_TRACE is where rank USER_RANK leaves what a profiler of its
own records. WAITED is a folder in which each rank leaves for which share of the time it stood ready
without a core, as the kernel says."""

import gc
import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from common import DELAY, SLOW_RANK, STEPS, end
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FAULT = sys.argv[1]
SEED = int(os.environ.get("SEED", "0"))
FROM = int(os.environ.get("FROM", "0"))
SHARD_BYTES = 64 << 10
WIDTH = 1 << 12
BATCH = 512

dist.init_process_group("gloo")
RANK = dist.get_rank()
SLOW = SLOW_RANK in (RANK, -1)
torch.manual_seed(SEED)
dice = random.Random(SEED * 100 + RANK)


def serve(connection):
    """A storage server: throttled for the slow rank."""
    throttled = FAULT == "loader" and SLOW
    parts = 8 if throttled else 1
    while connection.recv(1):
        for _ in range(parts):
            if throttled:
                time.sleep(DELAY / parts)
            connection.sendall(bytes(SHARD_BYTES // parts))


def read_shard(storage):
    buffer = bytearray(SHARD_BYTES)
    view = memoryview(buffer)
    storage.sendall(b"?")
    while view:
        view = view[storage.recv_into(view) :]
    return buffer


class Shards(Dataset):
    def __init__(self):
        self.storage, server = socket.socketpair()
        threading.Thread(target=serve, args=(server,), daemon=True).start()

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        shard = read_shard(self.storage)
        return torch.randn(BATCH, 32, generator=torch.Generator().manual_seed(shard[0] + index))


def augment_in_python(seconds):
    """Burns CPU in Python."""
    until = time.thread_time() + seconds
    total = 0
    while time.thread_time() < until:
        for number in range(20_000):
            total += number * number
    return total


def without_core_ns():
    return int(Path("/proc/self/schedstat").read_text().split()[1])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 32))
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        if FAULT == "forward" and SLOW and self.steps > FROM:
            augment_in_python(DELAY)
        if FAULT == "quota":
            # A quota that is used up while it waits for the others makes nobody late.
            augment_in_python(0.02)
        return self.inner(x)


model = DistributedDataParallel(nn.Sequential(Layer(), nn.Linear(32, 1)))
optimizer = optim.SGD(model.parameters(), lr=0.01)
if FAULT == "gc":
    gc.disable()
    # Collecting takes the longer the more there is that lives.
    lives, took = [], 0.0
    while took < DELAY:
        lives.extend([] for _ in range(50_000))
        began = time.thread_time()
        gc.collect()
        took = time.thread_time() - began
burners = []
if FAULT == "pinned" and SLOW:
    # The rank has an eighth of a core; on two cores its peers have a third of one each.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    burn = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burn) for _ in range(7)]
if FAULT == "quota" and SLOW:
    (Path(os.environ["GROUP"]) / "cgroup.procs").write_text(str(os.getpid()))
waited_ns, began_ns = without_core_ns(), time.monotonic_ns()
users = None
if os.environ.get("USER_RANK") == str(RANK):
    users = torch.profiler.profile()
    users.start()
for x in DataLoader(Shards(), batch_size=None):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    if FAULT == "gc" and dice.random() < 0.3:
        gc.collect()
if users is not None:
    users.stop()
    users.export_chrome_trace(os.environ["USER_TRACE"])
if "WAITED" in os.environ:
    share = (without_core_ns() - waited_ns) / (time.monotonic_ns() - began_ns)
    (Path(os.environ["WAITED"]) / str(RANK)).write_text(str(share))
for burner in burners:
    burner.kill()
del model, optimizer
end()
