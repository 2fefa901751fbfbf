"""A pipeline that works its passes off between Megatron-Core's timers, or a stand-in of them.

All forwards, then all backwards. SLOW_BLOCK names one: stage, pass (F or B), microbatch, step.

torchrun --nproc-per-node 3 megatron_pipeline.py
"""

import os
import time

import torch
import torch.distributed as dist
from common import STEPS, end
from megatron.core import parallel_state
from megatron.core.timers import Timers
from torch import nn, optim

MICROBATCHES = 4
SLOW = os.environ.get("SLOW_BLOCK", "")
timers = Timers()


def work(rank, passes, microbatch, step):
    timer = {"F": "forward-compute", "B": "backward-compute"}[passes]
    timers(timer, log_level=2).start()
    is_slow = f"{rank},{passes},{microbatch},{step}" == SLOW
    time.sleep((0.01 if passes == "F" else 0.02) + (0.3 if is_slow else 0.0))
    timers(timer).stop()


dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
assert parallel_state.get_pipeline_model_parallel_rank() == rank
parameter = nn.Parameter(torch.ones(1))
optimizer = optim.SGD([parameter], lr=0.01)
tensor = torch.zeros(8)
for step in range(STEPS):
    optimizer.zero_grad()
    timers("forward-backward", log_level=1).start(barrier=False)
    for passes, source, target in (("F", rank - 1, rank + 1), ("B", rank + 1, rank - 1)):
        for microbatch in range(MICROBATCHES):
            if 0 <= source <= last:
                dist.recv(tensor, source)
            work(rank, passes, microbatch, step)
            if 0 <= target <= last:
                dist.send(tensor, target)
    timers("forward-backward").stop()
    parameter.grad = torch.ones(1)
    optimizer.step()
end()
