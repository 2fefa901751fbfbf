"""A CUDA card behind what tests ask of the accelerator of theirs: kernels that take a given time.

Ranks may share one card: NCCL then takes each for a host of its own, and they talk over sockets.
"""

import os
import time

import torch

NAME, BACKEND = "cuda", "nccl"
rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if torch.cuda.device_count() < ranks:
    os.environ.setdefault("NCCL_HOSTID", f"rank{rank}")
    os.environ.setdefault("NCCL_NET", "Socket")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
torch.cuda.set_device(rank % torch.cuda.device_count())

paces, launched = {}, []


def timed(launch):
    """The events before and behind what is launched."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    launch()
    end.record()
    return begin, end


def cycles_in_a_second():
    """What a kernel that counts the clock of its card needs to know. The first one warms up."""
    cycles = 50_000_000
    for _ in range(2):
        begin, end = timed(lambda: torch.cuda._sleep(cycles))
        end.synchronize()
    return cycles / (begin.elapsed_time(end) * 1e-3)


frequency = cycles_in_a_second()


def pace(factor, phase="all"):
    """From now on kernels of this phase take that many times as long."""
    paces[phase] = factor


def spend(seconds, phase="kernel"):
    """Launches a kernel that takes that long on the current stream."""
    cycles = int(seconds * paces.get(phase, paces.get("all", 1.0)) * frequency)
    launched.append((time.monotonic_ns(), phase, *timed(lambda: torch.cuda._sleep(cycles))))


def stop(where="kernel"):
    """The device never goes on."""
    if where != "kernel":
        raise NotImplementedError("a card cannot be stopped inside a collective")
    torch.cuda._sleep(1 << 62)


def measured(since_ns=0):
    """Seconds of kernels launched since then, by phase."""
    seconds = {}
    for at_ns, phase, begin, end in launched:
        if at_ns >= since_ns:
            seconds[phase] = seconds.get(phase, 0.0) + begin.elapsed_time(end) * 1e-3
    return seconds
