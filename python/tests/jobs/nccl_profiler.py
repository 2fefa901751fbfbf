"""NCCL's profiler plugin, called as NCCL 2.27 does, without NCCL."""

import ctypes
import os

SEND_GPU_WAIT, SEND_WAIT, RECV_WAIT, RECV_FLUSH_WAIT, RECV_GPU_WAIT = 8, 9, 10, 11, 12
IN_PROGRESS, SEND_PEER_WAIT = 19, 20
COLL, PROXY_OP, PROXY_STEP = 2, 8, 16


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


class Communicator:
    """One rank's side of a communicator."""

    def __init__(self, name, rank, ranks):
        pointer, number = ctypes.c_void_p, ctypes.c_int
        library = ctypes.CDLL(os.environ["NCCL_PROFILER_PLUGIN"])
        plugin = Plugin.in_dll(library, "ncclProfiler_v4")
        names = [pointer, pointer, ctypes.c_char_p, ctypes.c_uint64]
        init = ctypes.CFUNCTYPE(number, *names, number, number, number, pointer)(plugin.init)
        self._start = ctypes.CFUNCTYPE(number, pointer, pointer, pointer)(plugin.start)
        self.stop = ctypes.CFUNCTYPE(number, pointer)(plugin.stop)
        self._record = ctypes.CFUNCTYPE(number, pointer, number, pointer)(plugin.record)
        self.rank, self._context, mask = rank, pointer(), number()
        out = ctypes.byref(self._context), ctypes.byref(mask)
        assert init(*out, name.encode(), 0xFEED, ranks, ranks, rank, None) == 0
        assert mask.value & PROXY_STEP

    def _begin(self, kind, parent, fields):
        descriptor = Descriptor(type=kind, parent=parent, rank=self.rank)
        for offset, value in fields:
            place = ctypes.addressof(descriptor) + offset
            ctypes.memmove(place, ctypes.byref(value), ctypes.sizeof(value))
        handle = ctypes.c_void_p()
        self._start(self._context, ctypes.byref(handle), ctypes.byref(descriptor))
        return handle

    def all_reduce(self, sequence, floats):
        """As it is enqueued, which takes no time."""
        coll = self._begin(
            COLL,
            None,
            [
                (24, ctypes.c_uint64(sequence)),
                (32, ctypes.c_char_p(b"AllReduce")),
                (56, ctypes.c_size_t(floats)),
                (72, ctypes.c_char_p(b"ncclFloat32")),
            ],
        )
        self.stop(coll)
        return coll

    def flow(self, coll, channel, peer, steps, sends):
        """What a channel sends to a peer, or gets from it."""
        op = self._begin(
            PROXY_OP,
            coll,
            [
                (24, ctypes.c_int(os.getpid())),
                (28, ctypes.c_uint8(channel)),
                (32, ctypes.c_int(peer)),
                (36, ctypes.c_int(steps)),
                (44, ctypes.c_int(sends)),
            ],
        )
        self._record(op, IN_PROGRESS, None)
        return op

    def step(self, op, step):
        return self._begin(PROXY_STEP, op, [(24, ctypes.c_int(step))])

    def reach(self, step, state, transfer_bytes):
        self._record(step, state, ctypes.byref(ctypes.c_size_t(transfer_bytes)))
