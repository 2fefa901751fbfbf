"""Ranks whose collectives go through NCCL's profiler plugin, as NCCL 2.27 calls it, without NCCL:
all-reduces on a ring, of which the last one stops in the middle.

    SLOW_RANK=1 torchrun --nproc-per-node 4 flows.py

What rank ``SLOW_RANK`` gives to the network in the last one is not delivered to the next rank.
"""

import ctypes
import os
import time

COLL, PROXY_OP, PROXY_STEP = 2, 8, 16
SEND_GPU_WAIT, SEND_WAIT, RECV_WAIT, RECV_FLUSH_WAIT, RECV_GPU_WAIT = 8, 9, 10, 11, 12
IN_PROGRESS, SEND_PEER_WAIT = 19, 20
TRANSFERS, CHANNELS, ROUNDS = 8, 2, 20

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
broken = int(os.environ["SLOW_RANK"])
before, after = (rank - 1) % ranks, (rank + 1) % ranks


class Descriptor(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint8),
        ("parent", ctypes.c_void_p),
        ("rank", ctypes.c_int),
        ("of_type", ctypes.c_uint8 * 80),
    ]


class Plugin(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in ("init", "start", "stop", "record", "finalize")),
    ]


library = ctypes.CDLL(os.environ["NCCL_PROFILER_PLUGIN"])
plugin = Plugin.in_dll(library, "ncclProfiler_v4")
pointer, number = ctypes.c_void_p, ctypes.c_int
init = ctypes.CFUNCTYPE(
    number, pointer, pointer, ctypes.c_char_p, ctypes.c_uint64, number, number, number, pointer
)(plugin.init)
start_event = ctypes.CFUNCTYPE(number, pointer, pointer, pointer)(plugin.start)
stop = ctypes.CFUNCTYPE(number, pointer)(plugin.stop)
record = ctypes.CFUNCTYPE(number, pointer, number, pointer)(plugin.record)

context, mask = pointer(), number()
assert (
    init(ctypes.byref(context), ctypes.byref(mask), b"ring", 0xFEED, ranks, ranks, rank, None) == 0
)
assert mask.value & PROXY_STEP


def start(kind, parent, fields):
    descriptor = Descriptor(type=kind, parent=parent, rank=rank)
    for offset, value in fields:
        ctypes.memmove(
            ctypes.addressof(descriptor) + offset, ctypes.byref(value), ctypes.sizeof(value)
        )
    handle = pointer()
    start_event(context, ctypes.byref(handle), ctypes.byref(descriptor))
    return handle


def flow(coll, channel, peer, sends):
    op = start(
        PROXY_OP,
        coll,
        [
            (24, ctypes.c_int(os.getpid())),
            (28, ctypes.c_uint8(channel)),
            (32, ctypes.c_int(peer)),
            (36, ctypes.c_int(TRANSFERS)),
            (44, ctypes.c_int(sends)),
        ],
    )
    record(op, IN_PROGRESS, None)
    return op


def transfer(op, step, states, stops=True):
    size = ctypes.c_size_t(1 << 20)
    event = start(PROXY_STEP, op, [(24, ctypes.c_int(step))])
    for state in states:
        record(event, state, ctypes.byref(size))
    if stops:
        stop(event)


def all_reduce(sequence, stuck_at):
    """Runs to the end, or as far as a ring gets of which one link delivers no further."""
    coll = start(
        COLL,
        None,
        [
            (24, ctypes.c_uint64(sequence)),
            (32, ctypes.c_char_p(b"AllReduce")),
            (56, ctypes.c_size_t(1 << 20)),
            (72, ctypes.c_char_p(b"ncclFloat32")),
        ],
    )
    stop(coll)
    for channel in range(CHANNELS):
        send, receive = flow(coll, channel, after, 1), flow(coll, channel, before, 0)
        # How many hops downstream of the broken link; what came before it flows on.
        sent = min(TRANSFERS, stuck_at + (rank - broken) % ranks)
        arrived = min(TRANSFERS, stuck_at + (before - broken) % ranks)
        for step in range(sent):
            transfer(send, step, (SEND_GPU_WAIT, SEND_PEER_WAIT, SEND_WAIT))
        for step in range(arrived):
            transfer(receive, step, (RECV_WAIT, RECV_FLUSH_WAIT, RECV_GPU_WAIT))
        if sent < TRANSFERS:
            in_network = (SEND_GPU_WAIT, SEND_PEER_WAIT, SEND_WAIT)
            transfer(send, sent, in_network if rank == broken else (SEND_GPU_WAIT,), False)
        else:
            stop(send)
        if arrived < TRANSFERS:
            transfer(receive, arrived, (RECV_WAIT,), False)
        else:
            stop(receive)


for number_of_round in range(ROUNDS):
    last = number_of_round == ROUNDS - 1
    all_reduce(number_of_round, 2 if last else TRANSFERS)
    time.sleep(0.05)
print("stuck", flush=True)
time.sleep(600)
