"""Ranks that call NCCL 2.20 and know nothing of laggard but the library that is preloaded, with a
stand-in for NCCL that ``FAKE_NCCL`` names: all-reduces and sends on a common timetable.

    FAKE_NCCL=libnccl.so.2 SLOW_RANK=1 MEET=... launch.py --bare 4 calls.py [pauses]

Rank ``SLOW_RANK`` does not come to the last all-reduce: for good, or with ``pauses`` for a while.
"""

import ctypes
import os
import sys
import time

from meet import meet

ROUNDS, PERIOD_S = 40, 0.1

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
stuck = int(os.environ["SLOW_RANK"])
nccl = ctypes.CDLL(os.environ["FAKE_NCCL"], mode=os.RTLD_LOCAL)
# By name among all that is loaded, as a library that is linked with NCCL finds it.
calls = ctypes.CDLL(None)


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


pointer, size = ctypes.c_void_p, ctypes.c_size_t
comm, part = pointer(), pointer()
assert calls.ncclCommInitRank(ctypes.byref(comm), ranks, UniqueId(b"job"), rank) == 0
assert calls.ncclCommSplit(comm, rank % 2, rank // 2, ctypes.byref(part), None) == 0


def all_reduce(of):
    return calls.ncclAllReduce(None, None, size(1 << 20), 7, 0, of, None)


def exchange():
    calls.ncclGroupStart()
    calls.ncclSend(None, size(1000), 9, (rank + 1) % ranks, comm, None)
    calls.ncclRecv(None, size(1000), 9, (rank - 1) % ranks, comm, None)
    calls.ncclGroupEnd()


def read_shard():
    time.sleep(4 if sys.argv[1:] == ["pauses"] else 600)


began = meet()
for number in range(ROUNDS):
    time.sleep(max(0.0, began + PERIOD_S * number - time.time()))
    exchange()
    all_reduce(part)
    if number == ROUNDS - 1 and rank == stuck:
        read_shard()
    all_reduce(comm)
# What a rank does once it waits for its GPU.
time.sleep(max(0.0, began + PERIOD_S * ROUNDS + 6 - time.time()))
if sys.argv[1:] != ["pauses"]:
    time.sleep(600)
