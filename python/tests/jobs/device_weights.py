"""A few steps of DDP, FSDP2 and a pipeline; each rank leaves the weights it ends with.

launch.py 4 device_weights.py cpu|sim FOLDER
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from common import end
from torch import nn, optim
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

if sys.argv[1] == "sim":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import accelerator  # noqa: F401
device, folder = torch.device(sys.argv[1]), Path(sys.argv[2])

STEPS, BATCH, WIDTH, MICROBATCHES = 5, 8, 16, 4
dist.init_process_group("sim" if device.type == "sim" else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


def network():
    layers = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(*layers).to(device)


def batches(seed):
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(1000 * seed + step)
        yield torch.randn(BATCH, WIDTH, generator=generator).to(device)


def train(model, step, seed):
    """Trains the model by that; its weights as whole numbers of bits."""
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    for x in batches(seed):
        optimizer.zero_grad()
        step(x)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    whole = [getattr(each, "full_tensor", lambda each=each: each)() for each in model.parameters()]
    return [each.detach().cpu().view(torch.int32).tolist() for each in whole]


def ddp():
    torch.manual_seed(0)
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    return train(model, lambda x: nn.functional.mse_loss(model(x), x).backward(), rank)


def fsdp2():
    torch.manual_seed(0)
    model, mesh = network(), init_device_mesh(device.type, (ranks,))
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return train(model, lambda x: nn.functional.mse_loss(model(x), x).backward(), rank)


def pipeline():
    torch.manual_seed(rank)
    model = network()
    stage = pipelining.PipelineStage(model, rank, ranks, device)
    schedule = pipelining.Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    first, last = rank == 0, rank == ranks - 1

    def step(x):
        schedule.step(*([x] if first else []), target=x if last else None)

    return train(model, step, 0)


weights = {mode.__name__: mode() for mode in (ddp, fsdp2, pipeline)}
(folder / f"{device.type}{rank}.json").write_text(json.dumps(weights))
end()
