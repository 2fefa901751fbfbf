"""Ranks whose collectives go through NCCL's profiler plugin, as NCCL 2.27 calls it, without NCCL:
all-reduces on a ring, on a common timetable.

    SLOW_RANK=1 MEET=... torchrun --nproc-per-node 4 flows.py stops|slow

What rank ``SLOW_RANK`` gives to the network is not delivered to the next rank: never in the last
operation (``stops``), late in the second half of them (``slow``).
"""

import ctypes
import os
import sys
import time

from meet import meet

COLL, PROXY_OP, PROXY_STEP = 2, 8, 16
SEND_GPU_WAIT, SEND_WAIT, RECV_WAIT, RECV_FLUSH_WAIT, RECV_GPU_WAIT = 8, 9, 10, 11, 12
IN_PROGRESS, SEND_PEER_WAIT = 19, 20
TRANSFERS, CHANNELS, ROUNDS = 8, 2, 40
PERIOD_S, USUAL_S, SLOW_S = 0.25, 0.02, 0.2

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


SENT = (SEND_GPU_WAIT, SEND_PEER_WAIT, SEND_WAIT)
RECEIVED = (RECV_WAIT, RECV_FLUSH_WAIT, RECV_GPU_WAIT)


def begin(op, step, states):
    size = ctypes.c_size_t(1 << 20)
    event = start(PROXY_STEP, op, [(24, ctypes.c_int(step))])
    for state in states:
        record(event, state, ctypes.byref(size))
    return event


def pass_on(op, done, whole, states, waits_in):
    """Transfers until the link delivers no more; the rest, once it does."""
    for step in range(done):
        stop(begin(op, step, states))
    if done == whole:
        return lambda: stop(op)
    event, size = begin(op, done, waits_in), ctypes.c_size_t(1 << 20)

    def rest():
        for state in states[len(waits_in) :]:
            record(event, state, ctypes.byref(size))
        stop(event)
        for step in range(done + 1, whole):
            stop(begin(op, step, states))
        stop(op)

    return rest


def all_reduce(sequence, held_at, held_s):
    """As far as a ring gets of which one link delivers no further, and the rest later."""
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
    rests = []
    for channel in range(CHANNELS):
        send, receive = flow(coll, channel, after, 1), flow(coll, channel, before, 0)
        # Hops downstream of the link one more transfer each is under way.
        sent = min(TRANSFERS, held_at + (rank - broken) % ranks)
        arrived = min(TRANSFERS, held_at + (before - broken) % ranks)
        waits_in = SENT if rank == broken else SENT[:1]
        rests.append(pass_on(send, sent, TRANSFERS, SENT, waits_in))
        rests.append(pass_on(receive, arrived, TRANSFERS, RECEIVED, RECEIVED[:1]))
    time.sleep(held_s)
    for rest in rests:
        rest()


began = meet()
for number_of_round in range(ROUNDS):
    time.sleep(max(0.0, began + PERIOD_S * number_of_round - time.time()))
    if sys.argv[1] == "slow":
        all_reduce(number_of_round, 2, USUAL_S if number_of_round < ROUNDS / 2 else SLOW_S)
    else:
        last = number_of_round == ROUNDS - 1
        all_reduce(number_of_round, 2, 600.0 if last else USUAL_S)
