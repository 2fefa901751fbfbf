"""What the job scripts share: slow samples and a small model. No word of laggard."""

import hashlib
import os
import time

import torch
from torch import nn
from torch.utils.data import Dataset

STEPS = int(os.environ.get("STEPS", "60"))
SLOW_RANK = int(os.environ.get("SLOW_RANK", "-1"))
DELAY = float(os.environ.get("DELAY", "0.05"))
BATCH = 2


def delay_here():
    """Sleeps on the slow rank."""
    time.sleep(0.001 + (DELAY if int(os.environ.get("RANK", "0")) == SLOW_RANK else 0.0))


class Samples(Dataset):
    """Random samples; the first of each batch is slow to load on the slow rank."""

    def __init__(self, batches=STEPS, batch=BATCH, slow=True):
        self.length, self.batch, self.slow = batches * batch, batch, slow

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.slow and index % self.batch == 0:
            delay_here()
        return torch.randn(16, generator=torch.Generator().manual_seed(index))


class Pause(nn.Module):
    """Takes its time, on the way forward and on the way back."""

    def forward(self, x):
        time.sleep(0.004)
        if x.requires_grad:
            x.register_hook(lambda grad: time.sleep(0.008))
        return x


def own_faults(rank, fault, slow_rank, amount):
    """By how much each fault of this rank strikes, by its place. A fault strikes the slow rank by
    the amount, or is ``place@rank@amount``; commas separate several.
    """
    faults = {}
    for each in fault.split(","):
        place, *own = each.split("@")
        of, much = own or (slow_rank, amount)
        if int(of) == rank:
            faults[place] = float(much)
    return faults


class Turns:
    """Sets of faults that strike in turn, each for as many steps, and what a step takes with each.

    What one process takes with and without a fault is the same but for the fault. Another process
    with the same faults may take a fifth longer.
    """

    # First steps of a turn, which are not counted: caches and ranks settle.
    SETTLE = 5

    def __init__(self, fault, steps, synchronize):
        self.sets, self.steps, self.synchronize = fault.split("/"), steps, synchronize
        self.took = {each: [] for each in self.sets}
        self.since = 0.0

    def begin(self, step):
        """The set of this step, from 1 on, if it is another than in the step before."""
        turn, at = divmod(step - 1, self.steps)
        if at == self.SETTLE and len(self.sets) > 1:
            self.synchronize()
            self.since = time.monotonic()
        if at:
            return None
        if turn:
            # What has been launched with a set belongs to it.
            self.synchronize()
            before = self.sets[(turn - 1) % len(self.sets)]
            took = time.monotonic() - self.since
            self.took[before].append(took / (self.steps - self.SETTLE))
        return self.sets[turn % len(self.sets)]

    def print(self):
        for each, took in self.took.items():
            if took:
                mean = sum(took) / len(took)
                print(f"with {each} a step took {mean * 1e3:.2f} ms", flush=True)


def network():
    """A small model whose step takes some 15 ms."""
    return nn.Sequential(nn.Linear(16, 16), Pause(), nn.ReLU(), nn.Linear(16, 1))


def digest(model):
    """Of the weights that this rank has."""
    weights = hashlib.sha256()
    for parameter in model.parameters():
        own = getattr(parameter, "to_local", lambda parameter=parameter: parameter)()
        weights.update(bytes(own.detach().cpu().contiguous().view(torch.uint8).flatten().tolist()))
    return weights.hexdigest()


def end():
    """Leaves the process group without the race some PyTorch versions lose."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
