"""A training in one process whose passes are a CUDA graph, captured anew every 20 steps.

The folder ``TIMES`` gets the weights it ends with, as a digest.
"""

import json
import os
from pathlib import Path

import torch
from common import STEPS, digest
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

WIDTH, BATCH = 64, 8
torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).to(device)
optimizer = optim.SGD(model.parameters(), lr=0.01)
held = torch.zeros(BATCH, WIDTH, device=device)


def passes():
    loss = model(held).square().mean()
    loss.backward()
    return loss


def capture():
    """What capturing asks for: a few passes on a stream of their own before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            passes()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = passes()
    return graph, loss


samples = TensorDataset(torch.randn(STEPS * BATCH, WIDTH))
for step, (x,) in enumerate(DataLoader(samples, batch_size=BATCH)):
    held.copy_(x)
    if step % 20 == 0:
        graph, loss = capture()
    graph.replay()
    optimizer.step()
    loss.item()
Path(os.environ["TIMES"], "0.json").write_text(json.dumps({"weights": digest(model)}))
