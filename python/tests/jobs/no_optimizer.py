"""A loop that reduces its gradients and updates its parameters itself.

``DEVICE`` may be cpu. Otherwise the device of ``SLOW_RANK`` takes ``DELAY`` seconds longer behind
each backward pass.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from common import DELAY, SLOW_RANK, STEPS, end
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
if os.environ.get("DEVICE") == "cpu":
    accelerator, backend, device = None, "gloo", "cpu"
else:
    import accelerator

    backend, device = accelerator.BACKEND, accelerator.NAME


def spend(seconds, phase):
    if accelerator:
        accelerator.spend(seconds, phase)


dist.init_process_group(backend)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1)).to(device)
for _ in range(STEPS):
    spend(0.01, "forward")
    model(torch.randn(2, 16).to(device)).square().mean().backward()
    spend(0.01 + (DELAY if dist.get_rank() == SLOW_RANK else 0.0), "backward")
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter -= 0.01 / dist.get_world_size() * parameter.grad
            parameter.grad = None
del model
end()
