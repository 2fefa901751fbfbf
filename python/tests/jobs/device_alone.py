"""What one process sees of the accelerator; says so as JSON. No word of laggard."""

import copy
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn, optim

sys.path.insert(0, str(Path(__file__).parents[1]))
import accelerator  # noqa: E402

said = {}


def taken(work):
    """Seconds that the host spends in it."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def recorded(timed=False):
    event = torch.Event(device="sim", enable_timing=timed)
    event.record()
    return event


def raised(work):
    try:
        work()
    except RuntimeError as error:
        return str(error)
    return None


def weights():
    """Training with operators of many kinds, on both devices."""
    torch.manual_seed(0)
    layers = nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 32), nn.Softmax(-1)
    here = nn.Sequential(*layers, nn.Linear(32, 4))
    trained = []
    for device, model in (("cpu", here), ("sim", copy.deepcopy(here).to("sim"))):
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        for step in range(10):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step)).to(device)
            kinds = torch.arange(8, device=device) % 4
            loss = nn.functional.cross_entropy(model(x), kinds)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        trained.append([each.detach().cpu() for each in model.parameters()])
    return all(torch.equal(*pair) for pair in zip(*trained, strict=True))


def host():
    """Who waits for whom."""
    x = torch.ones(4, device="sim")
    for name, wait in {
        "launch": lambda: [x.add_(1) for _ in range(100)],
        "item": lambda: x[0].item(),
        "nonzero": lambda: x.nonzero(),
        "cpu": lambda: x.cpu(),
        "pinned": lambda: x.to("cpu", non_blocking=True),
        "stream": lambda: torch.accelerator.current_stream().synchronize(),
        "device": lambda: torch.accelerator.synchronize(),
    }.items():
        torch.accelerator.synchronize()
        accelerator.spend(0.3)
        said[name] = taken(wait)
    torch.accelerator.synchronize()
    accelerator.queue(8)
    said["full queue"] = taken(lambda: [accelerator.spend(0.02) for _ in range(20)])
    accelerator.queue(1024)
    torch.accelerator.synchronize()


def events():
    """What events say of kernels, and what bounds the device knows for each."""
    since_ns, timed = time.monotonic_ns(), []
    accelerator.spend(0.4)
    for seconds in (0.003, 0.03, 0.1):
        begin = recorded(timed=True)
        accelerator.spend(seconds, "timed")
        timed.append((begin, recorded(timed=True)))
    said["ready"] = timed[-1][1].query()
    torch.accelerator.synchronize()
    said["ready later"] = timed[-1][1].query()
    log = [entry for entry in accelerator.log() if entry[0] == 0 and entry[2] >= since_ns]
    said["elapsed"] = []
    for (begin, end), at in zip(
        timed, (at for at, entry in enumerate(log) if entry[1] == "timed"), strict=True
    ):
        before, after = log[at - 1], log[at + 1]
        bounds = [(after[2] - before[3]) * 1e-6, (after[3] - before[2]) * 1e-6]
        said["elapsed"].append([bounds[0], begin.elapsed_time(end), bounds[1]])
    accelerator.pace(3, "paced")
    accelerator.spend(0.02, "paced")
    torch.accelerator.synchronize()
    said["paced"] = accelerator.measured(since_ns)["paced"]


def streams():
    """A stream of its own runs beside, until one waits for the other."""
    side, x = torch.Stream(device="sim"), torch.zeros(1, device="sim")
    with side:
        accelerator.spend(0.5)
        x.add_(1)
        added = recorded()
    said["beside"] = x.item()
    added.wait()
    said["after"] = x.item()


def capture():
    accelerator.capture_begin()
    said["capturing"] = torch.sim.is_current_stream_capturing()
    (torch.ones(2, device="sim", requires_grad=True) * 2).sum().backward()
    said["innocent"] = accelerator.capture_end()
    accelerator.capture_begin()
    recorded(timed=True).query()
    said["guilty"] = accelerator.capture_end()


def faults():
    event = recorded()
    accelerator.fail_queries(True)
    said["failing query"] = raised(event.query)
    accelerator.fail_queries(False)
    side = torch.Stream(device="sim")
    with side:
        accelerator.stop()
        event = recorded()
    time.sleep(0.05)
    said["stopped"] = event.query()
    # Told where the host next waits, not where it launched.
    x = torch.ones(3, device="sim")[torch.tensor([7])]
    said["failed"] = raised(x.cpu)


said["current"] = str(torch.accelerator.current_accelerator())
said["weights"] = weights()
host()
events()
streams()
capture()
faults()
print(json.dumps(said))
