"""Ranks whose collectives go through NCCL's profiler plugin, as NCCL 2.27 calls it, without NCCL:
all-reduces on a ring, on a common timetable.

    SLOW_RANK=1 MEET=... launch.py --bare 4 flows.py stops|slow

What rank ``SLOW_RANK`` gives to the network is not delivered to the next rank: never in the last
operation (``stops``), late in the second half of them (``slow``).
"""

import os
import sys
import time

from meet import meet
from nccl_profiler import (
    RECV_FLUSH_WAIT,
    RECV_GPU_WAIT,
    RECV_WAIT,
    SEND_GPU_WAIT,
    SEND_PEER_WAIT,
    SEND_WAIT,
    Communicator,
)

TRANSFERS, CHANNELS, ROUNDS = 8, 2, 40
TRANSFER_BYTES, FLOATS = 1 << 20, 1 << 20
USUAL_S, SLOW_S = 0.02, 0.2
# Longer than the slow ones take.
PERIOD_S = 0.25 if sys.argv[1] == "slow" else 0.1

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
broken = int(os.environ["SLOW_RANK"])
before, after = (rank - 1) % ranks, (rank + 1) % ranks
ring = Communicator("ring", rank, ranks)

SENT = (SEND_GPU_WAIT, SEND_PEER_WAIT, SEND_WAIT)
RECEIVED = (RECV_WAIT, RECV_FLUSH_WAIT, RECV_GPU_WAIT)


def begin(op, step, states):
    event = ring.step(op, step)
    for state in states:
        ring.reach(event, state, TRANSFER_BYTES)
    return event


def pass_on(op, done, whole, states, waits_in):
    """Transfers until the link delivers no more; the rest, once it does."""
    for step in range(done):
        ring.stop(begin(op, step, states))
    if done == whole:
        return lambda: ring.stop(op)
    event = begin(op, done, waits_in)

    def rest():
        for state in states[len(waits_in) :]:
            ring.reach(event, state, TRANSFER_BYTES)
        ring.stop(event)
        for step in range(done + 1, whole):
            ring.stop(begin(op, step, states))
        ring.stop(op)

    return rest


def all_reduce(sequence, held_at, held_s):
    """As far as a ring gets of which one link delivers no further, and the rest later."""
    coll = ring.all_reduce(sequence, FLOATS)
    rests = []
    for channel in range(CHANNELS):
        send = ring.flow(coll, channel, after, TRANSFERS, 1)
        receive = ring.flow(coll, channel, before, TRANSFERS, 0)
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
