"""A training loop on an accelerator: its kernels run behind the host, and what they compute counts.

``MODE`` is ddp, fsdp2, or pipeline (a stage on each of four ranks). ``FAULT`` strikes ``SLOW_RANK``
from step ``SINCE`` on:

- on its host it takes ``DELAY`` seconds of a step: loader, forward, backward, launches, optimizer,
  callback, or pause (one step in 25, five times as long);
- on its device kernels take ``FACTOR`` times as long: device, device_forward, device_backward,
  device_optimizer; all_slow does so on every rank;
- the device stops for good: stop_kernel in a kernel of the forward pass, stop_before before the
  collectives of the backward pass, stop_collective inside the next collective, stop_all in a
  kernel on every rank;
- it strikes who watches: queries of events fail (queries), or every rank captures its passes as a
  graph, and counts how often it is disturbed (capture).

There may be several of host and device, each with a rank and its seconds or factor:
``loader@1@0.04,device_forward@3@2``. With ``TURN``, sets of them that ``/`` separates strike in
turn, each for so many steps.

``LOAD`` is how many times as much the devices have to do: with 3 they are what steps wait for.
``READ`` is where the loss is read: after the optimizer, before it, ten (every tenth step), never,
or clip (the norm of the gradients, inside the optimizer). In the folder ``TIMES`` each rank leaves
what its device measured. If the fault begins after the warm-up, what a step takes from then on is
printed.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from common import Turns, digest, end, own_faults
from torch import nn, optim
from torch.distributed import pipelining
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).parents[1]))
if torch.cuda.is_available():
    import card as accelerator
else:
    import accelerator

MODE, FAULT = os.environ.get("MODE", "ddp"), os.environ.get("FAULT", "none")
READ, TIMES = os.environ.get("READ", "after"), os.environ.get("TIMES")
STEPS, WARM = int(os.environ.get("STEPS", "65")), 5
SLOW_RANK, SINCE = int(os.environ.get("SLOW_RANK", "2")), int(os.environ.get("SINCE", "1"))
DELAY, FACTOR = float(os.environ.get("DELAY", "0.06")), float(os.environ.get("FACTOR", "1.5"))
SEED, TURN = int(os.environ.get("SEED", "1")), int(os.environ.get("TURN", "0"))
LOAD = float(os.environ.get("LOAD", "1"))
# What a step takes on the device and on the host, in seconds.
DEVICE = {"forward": 0.012 * LOAD, "backward": 0.010 * LOAD, "optimizer": 0.005 * LOAD}
HOST = {"data": 0.002, "forward": 0.003, "backward": 0.002, "optimizer": 0.001, "callback": 0.001}
LAYERS, BATCH, WIDTH = 3, 8, 16
# A pipeline passes the layers once for each microbatch.
PASSES = 4 if MODE == "pipeline" else 1

dist.init_process_group(accelerator.BACKEND)
rank, ranks = dist.get_rank(), dist.get_world_size()
slow, device = rank == SLOW_RANK, torch.device(accelerator.NAME)
AMOUNT = FACTOR if FAULT.startswith("device") else DELAY
turns = Turns(FAULT, TURN or STEPS, torch.accelerator.synchronize)
faults = {}
noise = random.Random(1000 * SEED + rank)
step = violations = 0


def spend(seconds):
    time.sleep(seconds * noise.uniform(0.95, 1.05))


def launch(phase, seconds):
    accelerator.spend(seconds * noise.uniform(0.95, 1.05), phase)


def struck(place):
    """Seconds that the host is late by here."""
    if step < SINCE:
        return 0.0
    if place == "pause":
        return 5 * faults.get(place, 0.0) if step % 25 == 12 else 0.0
    return faults.get(place, 0.0)


def begin():
    """What strikes the device in this step."""
    global faults
    struck_now = turns.begin(step)
    if struck_now:
        faults = own_faults(rank, struck_now, SLOW_RANK, AMOUNT)
        accelerator.paces.clear()
    if step == SINCE and FAULT == "all_slow":
        accelerator.pace(FACTOR)
    for place, factor in faults.items():
        kind, _, phase = place.partition("_")
        if kind == "device" and (step == SINCE or (struck_now and step > SINCE)):
            accelerator.pace(factor, phase or "all")
    if step == SINCE and slow and FAULT == "stop_collective":
        accelerator.stop("collective")
    if step == SINCE and slow and FAULT == "queries":
        accelerator.fail_queries(True)


def stop(*faults):
    """Stops the device here."""
    if step == SINCE and FAULT in faults and (slow or FAULT == "stop_all"):
        accelerator.stop()


class Samples(Dataset):
    """Random samples; the first of each batch takes a moment to load."""

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        if index % BATCH == 0:
            spend(HOST["data"])
            time.sleep(struck("loader"))
        # All ranks of a pipeline see the same samples.
        seed = index if MODE == "pipeline" else index * ranks + rank
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))


class Kernels(torch.autograd.Function):
    """Takes time on the host and on the device, on the way forward and on the way back."""

    @staticmethod
    def forward(ctx, x):
        late = struck("forward") + struck("launches") / 2
        for _ in range(2):
            spend(HOST["forward"] / LAYERS / PASSES / 2)
            time.sleep(late / LAYERS / PASSES / 2)
            launch("forward", DEVICE["forward"] / LAYERS / PASSES / 2)
        stop("stop_kernel", "stop_all")
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        spend(HOST["backward"] / LAYERS / PASSES)
        time.sleep((struck("backward") + struck("launches") / 2) / LAYERS / PASSES)
        launch("backward", DEVICE["backward"] / LAYERS / PASSES)
        return gradient


class Layer(nn.Linear):
    def forward(self, x):
        return Kernels.apply(super().forward(x)).tanh()


class SGD(optim.SGD):
    """Clips gradients where the norm is read back to do so."""

    def step(self, closure=None):
        if READ == "clip":
            parameters = [each for group in self.param_groups for each in group["params"]]
            norm = nn.utils.clip_grad_norm_(parameters, 1.0)
            getattr(norm, "full_tensor", lambda: norm)().item()
        spend(HOST["optimizer"])
        time.sleep(struck("optimizer"))
        launch("optimizer", DEVICE["optimizer"])
        return super().step(closure)


def build():
    """The model as it is trained, and how a batch passes through it."""
    torch.manual_seed(rank if MODE == "pipeline" else 0)
    model = nn.Sequential(*(Layer(WIDTH, WIDTH) for _ in range(LAYERS)))
    if MODE != "pipeline":
        model.append(nn.Linear(WIDTH, 1))
    model.to(device)
    if MODE == "ddp":
        # A bucket for each layer: reductions overlap with the backward pass, as in large models.
        model = DistributedDataParallel(model, bucket_cap_mb=0.001)
    elif MODE == "fsdp2":
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    else:
        stage = pipelining.PipelineStage(model, rank, ranks, device)
        schedule = pipelining.Schedule1F1B(stage, PASSES, loss_fn=nn.functional.mse_loss)
        return model, lambda x: run(schedule, x)
    return model, lambda x: train(model, x)


def train(model, x):
    loss = model(x).square().mean()
    stop("stop_before")
    loss.backward()
    return loss


def run(schedule, x):
    """A batch through the pipeline; its loss, which all ranks get where it is read."""
    stop("stop_before")
    losses = []
    if rank == 0:
        schedule.step(x)
    elif rank == ranks - 1:
        schedule.step(target=x, losses=losses)
    else:
        schedule.step()
    loss = torch.stack(losses).mean() if losses else torch.zeros((), device=device)
    if reads("before") or reads("after"):
        dist.broadcast(loss, ranks - 1)
    return loss


def captured(work, x):
    """Does it as if it became a graph, where that is the fault."""
    global violations
    if FAULT != "capture" or step < SINCE:
        return work(x)
    accelerator.capture_begin()
    try:
        return work(x)
    finally:
        violations += accelerator.capture_end()


def reads(place):
    """Whether the loss is read here in this step."""
    return place == READ or (place == "after" and READ == "ten" and step % 10 == 0)


def save_times(model):
    seconds = accelerator.measured(warm_ns)
    times = {"rank": rank, "steps": step - WARM, "seconds": seconds, "violations": violations}
    Path(TIMES, f"{rank}.json").write_text(json.dumps({**times, "weights": digest(model)}))


model, pass_through = build()
optimizer = SGD(model.parameters(), lr=0.01)
warm_ns = since_ns = time.monotonic_ns()
for step, x in enumerate(DataLoader(Samples(), batch_size=BATCH), start=1):  # noqa: B007
    if step == WARM + 1:
        warm_ns = time.monotonic_ns()
    if step == SINCE:
        since_ns = time.monotonic_ns()
    begin()
    optimizer.zero_grad()
    loss = captured(pass_through, x.to(device))
    if reads("before"):
        loss.item()
    optimizer.step()
    time.sleep(struck("pause"))
    if reads("after"):
        loss.item()
    spend(HOST["callback"])
    time.sleep(struck("callback"))
torch.accelerator.synchronize()
if rank == 0:
    now_ns = time.monotonic_ns()
    text = f"a step took {(now_ns - warm_ns) / (STEPS - WARM) * 1e-6:.2f} ms"
    if SINCE > WARM:
        since = (now_ns - since_ns) / (STEPS - SINCE + 1)
        text += f"; since step {SINCE} a step took {since * 1e-6:.2f} ms"
    print(text, flush=True)
    turns.print()
if TIMES:
    save_times(model)
del model, optimizer, pass_through
end()
