"""A DDP training that stops moving at step 40, each time for another reason.

torchrun --nproc-per-node 4 hangs.py loader
"""

import ctypes
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from common import Samples, network
from torch import optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

REASON, CULPRIT, STEP = sys.argv[1], int(os.environ.get("SLOW_RANK", "2")), 40
PAUSE_S = float(os.environ.get("PAUSE_S", "3600"))


class Shards(Samples):
    def __getitem__(self, index):
        if REASON == "loader" and here and index == STEP:
            self.read_shard()
        return super().__getitem__(index)

    def read_shard(self):
        time.sleep(PAUSE_S)


def save_checkpoint():
    time.sleep(PAUSE_S)


def spin():
    while True:
        pass


def hold_gil():
    # usleep through PyDLL keeps the interpreter lock.
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(PAUSE_S * 1e6) % 2**32))


def all_reduce():
    dist.all_reduce(torch.ones(4))


dist.init_process_group("gloo")
here = dist.get_rank() == CULPRIT
pair = dist.new_group([CULPRIT, (CULPRIT + 1) % dist.get_world_size()], group_desc="pair")
in_pair = dist.get_rank() in dist.get_process_group_ranks(pair)
model = DistributedDataParallel(network())
optimizer = optim.SGD(model.parameters(), lr=0.01)
for step, x in enumerate(DataLoader(Shards(60, 1, slow=False), batch_size=1)):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    if step != STEP:
        continue
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
del model, optimizer
dist.barrier()
dist.destroy_process_group()
