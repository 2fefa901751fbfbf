"""A DDP training that stops moving at one step, each time for another reason.

torchrun --nproc-per-node 4 hangs.py loader
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from common import Samples, network
from torch import nn, optim
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

REASON, CULPRIT = sys.argv[1], int(os.environ.get("SLOW_RANK", "2"))
STEP = int(os.environ.get("STEP", "40"))
PAUSE_S = float(os.environ.get("PAUSE_S", "3600"))


class Shards(Samples):
    def __getitem__(self, index):
        if REASON in ("loader", "worker") and here and index == STEP:
            self.read_shard()
        return super().__getitem__(index)

    def read_shard(self):
        if REASON == "worker":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(PAUSE_S)


def load_tokenizer():
    time.sleep(PAUSE_S)


def save_checkpoint():
    time.sleep(PAUSE_S)


def evaluate():
    time.sleep(PAUSE_S)


def download_shard():
    time.sleep(PAUSE_S)


def read_shard(x):
    time.sleep(PAUSE_S if stuck else 0)
    return x


def compile_slowly(graph, inputs):
    time.sleep(PAUSE_S)
    return graph.forward


def spin():
    while True:
        pass


def hold_gil():
    # usleep through PyDLL keeps the interpreter lock.
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(PAUSE_S * 1e6) % 2**32))


def all_reduce():
    dist.all_reduce(torch.ones(4))


if "UNREADABLE" in os.environ:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
dist.init_process_group("gloo")
here = dist.get_rank() == CULPRIT
pair = dist.new_group([CULPRIT, (CULPRIT + 1) % dist.get_world_size()], group_desc="pair")
in_pair = dist.get_rank() in dist.get_process_group_ranks(pair)
if REASON == "first" and here:
    load_tokenizer()
stuck = False
if REASON == "compiled":
    compiled = torch.compile(torch.compiler.disable(read_shard), backend="eager")
    compiled(torch.ones(1, 16))
model = DistributedDataParallel(network())
optimizer = optim.SGD(model.parameters(), lr=0.01)
steps = int(os.environ.get("STEPS", "60"))
steps = {"cut": 1_000_000, "join": STEP if here else 60}.get(REASON, steps)
uneven = Join([model]) if REASON == "join" else contextlib.ExitStack()
uneven.__enter__()
workers = 1 if REASON == "worker" else 0
loader = DataLoader(Shards(steps, 1, slow=False), batch_size=1, num_workers=workers)
for step, x in enumerate(loader):
    try:
        if REASON == "swallowed" and here and step == STEP:
            raise ValueError("a broken sample")
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    except ValueError:
        continue
    if step != STEP:
        continue
    if REASON == "returns" and here:
        sys.exit()
    if REASON == "more" and here:
        all_reduce()
    if REASON == "halves":
        (dist.barrier if in_pair else all_reduce)()
    if REASON == "order" and in_pair:
        groups = (pair, None) if here else (None, pair)
        for group in groups:
            dist.all_reduce(torch.ones(4), group=group)
    elif REASON == "order":
        all_reduce()
    if REASON == "skip" and not here:
        all_reduce()
    if REASON == "skip":
        dist.barrier()
    if REASON == "cut" and here:
        Path(os.environ["REACHED"]).touch()
    if REASON == "size":
        dist.all_reduce(torch.ones(8 if here else 4))
    if REASON == "small":
        dist.all_reduce(torch.ones(2 if here else 4))
    if REASON == "kill" and here:
        os.kill(os.getpid(), signal.SIGKILL)
    if REASON == "stop" and here:
        os.kill(os.getpid(), signal.SIGSTOP)
    if REASON == "spin" and here:
        spin()
    if REASON == "gil" and here:
        hold_gil()
    if REASON == "checkpoint":
        if here:
            save_checkpoint()
        dist.barrier()
    if REASON in ("evaluate", "download"):
        if here:
            (evaluate if REASON == "evaluate" else download_shard)()
        dist.barrier()
    stuck = here
    if REASON == "recompute" and here:
        checkpoint(read_shard, x, use_reentrant=False)
    if REASON == "compiled" and here:
        compiled(x)
    if REASON == "compile" and here:
        torch.compile(nn.Linear(16, 16), backend=compile_slowly)(x)
uneven.__exit__(None, None, None)
del uneven, model, optimizer
dist.barrier()
dist.destroy_process_group()
if REASON == "dismissed":
    os.kill(os.getpid(), signal.SIGKILL)
