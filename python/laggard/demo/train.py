"""A small distributed training with one fault hidden in it. It knows nothing of laggard.

    torchrun --nproc-per-node 4 train.py --fault data --seed 0

"Compute" is mostly sleep, so that four ranks fit on a laptop without getting into each
other's way and the hidden fault is the only one there is.
"""

import argparse
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FAULTS = (
    "none",
    "data",
    "forward",
    "backward",
    "between",
    "optim",
    "optim_barrier",
    "callback",
    "callback_barrier",
    "late_collective",
    "rotating",
    "periodic",
    "two",
    "all_data",
    "stall",
    "forward_fsdp2",
    "backward_fsdp2",
)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=FAULTS, default="data")
    parser.add_argument("--rank", type=int, help="the slow rank; by default the seed picks one")
    parser.add_argument("--delay", type=float, help="seconds it is late by")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", help="file for the final weights")
    return parser.parse_args()


class Samples(Dataset):
    """Random samples that take a moment to load."""

    def __init__(self, before_sample, length):
        self.before_sample, self.length = before_sample, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.before_sample(index)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(32, generator=generator)


class Layer(nn.Module):
    """A linear layer that takes its time, on the way forward and on the way back."""

    def __init__(self, forward_time, backward_time):
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.forward_time, self.backward_time = forward_time, backward_time

    def forward(self, x):
        self.forward_time()
        y = torch.relu(self.linear(x))
        if y.requires_grad:
            y.register_hook(lambda grad: self.backward_time())
        return y


class SlowSGD(torch.optim.SGD):
    """An optimizer that takes its time, and may meet the other ranks inside its step."""

    def __init__(self, parameters, step_time, barrier):
        super().__init__(parameters, lr=0.01, momentum=0.9)
        self.step_time, self.barrier = step_time, barrier

    def step(self, closure=None):
        self.step_time()
        if self.barrier is not None:
            self.barrier()
        return super().step(closure)


class Fault:
    """Where and when the hidden fault strikes."""

    def __init__(self, args, rank, ranks):
        self.kind, self.step = args.fault, 0
        self.rank, self.ranks = rank, ranks
        self.slow = args.seed % ranks if args.rank is None else args.rank
        usual = {"periodic": 0.2, "stall": 5.0}
        self.delay = usual.get(args.fault, 0.05) if args.delay is None else args.delay

    def strikes(self, where):
        """Seconds to be late by at a place of the loop, now, on this rank."""
        slow = self.rank == self.slow
        hits = {
            "data": where == "data" and slow,
            "forward": where == "forward" and slow,
            "backward": where == "backward" and slow,
            "between": where == "between" and slow,
            "optim": where == "optim" and slow,
            "optim_barrier": where == "optim" and slow,
            "callback": where == "callback" and slow,
            "callback_barrier": where == "callback" and slow,
            "late_collective": where == "collective" and slow,
            "rotating": where == "data" and self.rank == self.step % self.ranks,
            "periodic": where == "data" and slow and self.step % 10 == 0,
            "all_data": where == "data",
            "stall": where == "data" and slow and self.step == 60,
            "forward_fsdp2": where == "forward" and slow,
            "backward_fsdp2": where == "backward" and slow,
        }
        if self.kind == "two":
            other = (self.slow + 2) % self.ranks
            if where == "data" and slow:
                return self.delay
            if where == "forward" and self.rank == other:
                return 0.9 * self.delay
            return 0.0
        return self.delay if hits.get(self.kind, False) else 0.0


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    noise = random.Random(1000 * args.seed + rank)
    fault = Fault(args, rank, ranks)

    def spend(where, seconds):
        time.sleep(seconds * noise.uniform(0.97, 1.03) + fault.strikes(where))

    batch = 4
    loader = DataLoader(
        Samples(lambda index: index % batch or spend("data", 0.001), batch * args.steps),
        batch_size=batch,
    )
    layers = [Layer(lambda: spend("forward", 0.008), lambda: spend("backward", 0.016))]
    model = nn.Sequential(*layers, nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    if args.fault.endswith("fsdp2"):
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if any(True for _ in layer.parameters()):
                fully_shard(layer)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    barrier = dist.barrier if args.fault == "optim_barrier" else None
    optimizer = SlowSGD(model.parameters(), lambda: spend("optim", 0.003), barrier)

    for step, x in enumerate(loader):
        if rank == 0 and step % 40 == 0:
            print(f"train.py: step {step} of {args.steps}", file=sys.stderr)
        fault.step = step + 1
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if args.fault == "between":
            spend("between", 0.0)
        loss.backward()
        optimizer.step()
        spend("callback", 0.0005)
        if args.fault == "callback_barrier":
            dist.barrier()
        if args.fault == "late_collective":
            spend("collective", 0.0)
            dist.all_reduce(loss.detach())
    if args.save and rank == 0:
        weights = model.module.state_dict() if hasattr(model, "module") else model.state_dict()
        torch.save(weights, args.save)
    # Some PyTorch versions abort at exit if ranks leave at different times.
    del model, optimizer
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
