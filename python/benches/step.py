"""A training step of about 2 ms on one rank, and what it costs its main thread; under torchrun with
several ranks the same model in DDP over gloo.

Prints one line of JSON from rank 0: per step, the median CPU time of the main thread and the median
wall time, in microseconds. ``--traceml`` adds what TraceML asks a script for; laggard asks for
nothing.
"""

import json
import os
import statistics
import sys
import time
from contextlib import nullcontext

import torch
from torch import nn

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
WARMUP, STEPS = (200, 2000) if WORLD == 1 else (50, 400)

step_context = nullcontext
if "--traceml" in sys.argv:
    import traceml_ai as traceml

    traceml.init(mode="auto")

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(240, 240), nn.ReLU())])
if "--traceml" in sys.argv:
    step_context = lambda: traceml.trace_step(model)  # noqa: E731
if WORLD > 1:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
batches = torch.utils.data.TensorDataset(torch.randn(128 * (WARMUP + STEPS), 240))
loader = torch.utils.data.DataLoader(batches, batch_size=128)
cpu_us, wall_us = [], []
cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
for (x,) in loader:
    with step_context():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    cpu_now, wall_now = time.thread_time_ns(), time.perf_counter_ns()
    cpu_us.append((cpu_now - cpu) / 1e3)
    wall_us.append((wall_now - wall) / 1e3)
    cpu, wall = cpu_now, wall_now
medians = {
    "cpu_us": statistics.median(cpu_us[WARMUP:]),
    "wall_us": statistics.median(wall_us[WARMUP:]),
}
if os.environ.get("RANK", "0") == "0":
    print(json.dumps(medians), flush=True)
if WORLD > 1:
    torch.distributed.destroy_process_group()
