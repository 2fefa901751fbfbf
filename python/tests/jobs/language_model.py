"""A small language model, trained on whatever accelerator there is with kernels that are real.

``MODE`` is ddp or fsdp2. ``FAULT`` strikes ``SLOW_RANK`` from step ``SINCE`` on: its loader takes
``DELAY`` seconds a batch (loader), its device ``FACTOR`` times the work of each layer (device), or
in one step it swallows an exception and takes no part in the collectives (swallowed). read_backs
strikes all ranks: what each layer puts out is looked at on the host. With ``PROFILE`` each rank
leaves what a profiler of the user's recorded of five steps in that folder, and the job ends.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from common import end
from torch import nn, optim
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).parents[1]))
CARD = torch.cuda.is_available()
if CARD:
    import card as accelerator
else:
    import accelerator

MODE, FAULT = os.environ.get("MODE", "ddp"), os.environ.get("FAULT", "none")
STEPS, SINCE = int(os.environ.get("STEPS", "150")), int(os.environ.get("SINCE", "40"))
SLOW_RANK, DELAY = int(os.environ.get("SLOW_RANK", "1")), float(os.environ.get("DELAY", "0.06"))
FACTOR, PROFILE = int(os.environ.get("FACTOR", "3")), os.environ.get("PROFILE")
WARM = 10
LAYERS, WIDTH, WORDS, BATCH, LENGTH = (4, 512, 4096, 16, 1024) if CARD else (2, 32, 64, 2, 16)

dist.init_process_group(accelerator.BACKEND)
rank, ranks = dist.get_rank(), dist.get_world_size()
slow, device = rank == SLOW_RANK, torch.device(accelerator.NAME)
step = 0


def strikes(fault):
    return fault == FAULT and step >= SINCE


class Text(Dataset):
    """Words drawn at random; the first sequence of a batch takes a moment to read."""

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        if index % BATCH == 0 and slow and FAULT == "loader" and index // BATCH >= SINCE:
            time.sleep(DELAY)
        words = torch.Generator().manual_seed(index * ranks + rank)
        return torch.randint(WORDS, (LENGTH + 1,), generator=words)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        times = FACTOR if strikes("device") and slow else 1
        for _ in range(times):
            out = self.layer(x)
        if strikes("read_backs"):
            watch_activations(out)
        return out

    def layer(self, x):
        heads = (*x.shape[:2], 8, WIDTH // 8)
        of_heads = (
            each.reshape(heads).transpose(1, 2)
            for each in self.attention(self.before(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(*of_heads, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.feed(self.after(x))


def watch_activations(x):
    """What people leave in a model they once looked for a fault in."""
    if not torch.isfinite(x).all():
        raise ValueError("not finite")
    x.detach().abs().max().to("cpu")
    x.detach().float().std().item()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, x, next_words):
        x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.out(x).flatten(0, 1), next_words.flatten())


def build():
    torch.manual_seed(0)
    model = Model().to(device)
    if MODE == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=8)
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def train(model, optimizer, batch):
    with torch.autocast("cuda", torch.bfloat16) if CARD else contextlib.nullcontext():
        loss = model(batch[:, :-1], batch[:, 1:])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def profiled():
    """A profiler of the user's."""
    return torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=0, warmup=WARM, active=5),
        on_trace_ready=lambda of: of.export_chrome_trace(f"{PROFILE}/rank{rank}.json"),
    )


model = build()
optimizer = optim.AdamW(model.parameters(), lr=1e-4)
losses = []
began = time.monotonic()
with profiled() if PROFILE else contextlib.nullcontext() as profiler:
    for step, batch in enumerate(DataLoader(Text(), batch_size=BATCH)):  # noqa: B007
        if step in (WARM, SINCE):
            torch.accelerator.synchronize()
            began, first = time.monotonic(), step
        optimizer.zero_grad()
        if FAULT == "swallowed" and slow and step == SINCE:
            continue
        losses.append(train(model, optimizer, batch.to(device, non_blocking=True)))
        if step % 20 == 0:
            losses = [torch.stack(losses).mean()]
            if rank == 0:
                print(f"step {step}: loss {losses[0].item():.3f}", flush=True)
        if profiler is not None:
            profiler.step()
            if step == WARM + 6:
                break
torch.accelerator.synchronize()
if rank == 0:
    print(f"a step took {(time.monotonic() - began) / (step - first + 1) * 1e3:.2f} ms", flush=True)
del model, optimizer
end()
