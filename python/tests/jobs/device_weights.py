"""A few steps of DDP, FSDP2 and a pipeline on the accelerator, and again on the CPU; each rank
leaves the weights it ends with. On the CPU FSDP2 ends with those of DDP, and a pipeline with those
of a process alone.

launch.py 4 device_weights.py FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))
import accelerator  # noqa: E402, F401

STEPS, BATCH, WIDTH, MICROBATCHES = 5, 8, 16, 4
rank, ranks, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(sys.argv[1])


def network(seed):
    torch.manual_seed(seed)
    layers = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(*layers).to(device)


def batches(seed):
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(1000 * seed + step)
        yield torch.randn(BATCH, WIDTH, generator=generator).to(device)


def whole(model):
    """Its weights, those of all ranks."""
    return [getattr(each, "full_tensor", lambda each=each: each)() for each in model.parameters()]


def train(step, seed, *models):
    """Trains the models by that."""
    optimizers = [optim.AdamW(model.parameters(), lr=0.01) for model in models]
    for x in batches(seed):
        for optimizer in optimizers:
            optimizer.zero_grad()
        step(x)
        for model, optimizer in zip(models, optimizers):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


def mean(model, x):
    return nn.functional.mse_loss(model(x), x)


def ddp():
    model = DistributedDataParallel(network(0), bucket_cap_mb=0.001)
    train(lambda x: mean(model, x).backward(), rank, model)
    return whole(model)


def fsdp2():
    model, mesh = network(0), init_device_mesh(device.type, (ranks,))
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(lambda x: mean(model, x).backward(), rank, model)
    return whole(model)


def pipeline():
    model = network(rank)
    stage = pipelining.PipelineStage(model, rank, ranks, device)
    schedule = pipelining.Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    first, last = rank == 0, rank == ranks - 1

    def step(x):
        schedule.step(*([x] if first else []), target=x if last else None)

    train(step, 0, model)
    return whole(model)


def alone():
    """The same pipeline in one process."""
    stages = [network(seed) for seed in range(ranks)]
    model = nn.Sequential(*stages)
    train(lambda x: mean(model, x).backward(), 0, *stages)
    return whole(stages[rank])


def bits(weights):
    """Weights as whole numbers."""
    return [each.detach().cpu().view(torch.int32).tolist() for each in weights]


def are_close(these, those):
    """Whether they differ by no more than the order of sums."""
    return all(torch.allclose(a, b, atol=1e-4) for a, b in zip(these, those, strict=True))


for device, backend in ((torch.device("sim"), "sim"), (torch.device("cpu"), "gloo")):
    dist.init_process_group(backend)
    weights = {mode.__name__: mode() for mode in (ddp, fsdp2, pipeline)}
    if device.type == "cpu":
        assert are_close(weights["fsdp2"], weights["ddp"])
        assert are_close(weights["pipeline"], alone())
    weights = {mode: bits(each) for mode, each in weights.items()}
    (folder / f"{device.type}{rank}.json").write_text(json.dumps(weights))
    dist.barrier()
    dist.destroy_process_group()
