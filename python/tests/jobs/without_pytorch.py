"""A loop without PyTorch that says its steps itself; two processes meet in each of them, of which
one is forked and one is spawned."""

import multiprocessing
import os
import sys
import time

import laggard

STEPS = int(os.environ["STEPS"])


def train(rank, meeting):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    slow = rank == int(os.environ["SLOW_RANK"])
    for _ in range(STEPS):
        with laggard.step():
            with laggard.stage("tokenise"):
                time.sleep(0.05 if slow else 0.005)
            with laggard.stage("exchange"):
                meeting.wait()
    assert "torch" not in sys.modules


if __name__ == "__main__":
    # A meeting that is sent to a process of its own must be made for such.
    spawn, fork = map(multiprocessing.get_context, ("spawn", "fork"))
    meeting = spawn.Barrier(2)
    starts = [start.Process for start in (fork, spawn)]
    ranks = [start(target=train, args=(rank, meeting)) for rank, start in enumerate(starts)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(max(rank.exitcode for rank in ranks))
