"""DDP whose gradients go around a ring of sockets, told to NCCL's profiler plugin as NCCL tells its
own, until it is ended.

Every rank sends to the next one, a segment of the buffer at a time: what it got from the one before
must be there first. For PyTorch's profiler that is what gloo would do.
"""

import itertools
import os
import queue
import socket
import threading
import time

import numpy
import torch
import torch.distributed as dist
from nccl_profiler import (
    RECV_FLUSH_WAIT,
    RECV_GPU_WAIT,
    RECV_WAIT,
    SEND_GPU_WAIT,
    SEND_PEER_WAIT,
    SEND_WAIT,
    Communicator,
)
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

# What a socket holds of what was not delivered: little, so that what is slow is seen at once.
SOCKET_BYTES = 1 << 16


class Ring:
    def __init__(self):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.after, self.before = ((self.rank + way) % self.ranks for way in (1, -1))
        self.sending, self.receiving = self._connect()
        self.plugin = Communicator("ring", self.rank, self.ranks)
        # NCCL has one thread for what goes over the network.
        self.told = threading.Lock()
        self.sequence, self.ready, self.sent = 0, queue.Queue(), queue.Queue()
        threading.Thread(target=self._send, daemon=True).start()

    def _connect(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.connect((os.environ["MASTER_ADDR"], 1))
            own = out.getsockname()[0]
        listening = socket.create_server((own, 0))
        places = [None] * self.ranks
        dist.all_gather_object(places, listening.getsockname())
        sending = socket.socket()
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sending.connect(places[self.after])
        return sending, listening.accept()[0]

    def _begin(self, op, step, transfer_bytes, *states):
        with self.told:
            event = self.plugin.step(op, step)
            for state in states:
                self.plugin.reach(event, state, transfer_bytes)
        return event

    def _send(self):
        while True:
            op, step, segment = self.ready.get()
            states = SEND_GPU_WAIT, SEND_PEER_WAIT, SEND_WAIT
            event = self._begin(op, step, segment.nbytes, *states)
            self.sending.sendall(segment)
            with self.told:
                self.plugin.stop(event)
            self.sent.put(step)

    def _receive(self, op, step, segment):
        event = self._begin(op, step, segment.nbytes, RECV_WAIT)
        rest = memoryview(segment).cast("B")
        while rest:
            rest = rest[self.receiving.recv_into(rest) :]
        with self.told:
            self.plugin.reach(event, RECV_FLUSH_WAIT, segment.nbytes)
            self.plugin.reach(event, RECV_GPU_WAIT, segment.nbytes)
            self.plugin.stop(event)

    def all_reduce(self, buffer):
        segments = numpy.array_split(buffer.numpy(), self.ranks)
        steps = 2 * (self.ranks - 1)
        with self.told:
            coll = self.plugin.all_reduce(self.sequence, buffer.numel())
            send = self.plugin.flow(coll, 0, self.after, steps, 1)
            receive = self.plugin.flow(coll, 0, self.before, steps, 0)
        self.sequence += 1
        arrived = numpy.empty_like(segments[0])
        for step in range(steps):
            outgoing = segments[(self.rank - step) % self.ranks]
            incoming = segments[(self.rank - step - 1) % self.ranks]
            self.ready.put((send, step, outgoing))
            if step < self.ranks - 1:
                part = arrived[: incoming.size]
                self._receive(receive, step, part)
                incoming += part
            else:
                self._receive(receive, step, incoming)
        for _ in range(steps):
            self.sent.get()
        with self.told:
            self.plugin.stop(send)
            self.plugin.stop(receive)


def exchange(ring, bucket):
    buffer = bucket.buffer()
    with torch.profiler.record_function("gloo:all_reduce"):
        ring.all_reduce(buffer)
    done = torch.futures.Future()
    done.set_result(buffer.div_(ring.ranks))
    return done


dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)))
model.register_comm_hook(Ring(), exchange)
optimizer = optim.SGD(model.parameters(), lr=0.01)
for _ in itertools.count():
    optimizer.zero_grad()
    model(torch.randn(4, 1024)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
