"""A job that does not start: a rank does not come, or the ranks do not find one another.

launch.py --bare 3 starts.py late|apart
"""

import os
import sys
import time

import torch.distributed as dist

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def prepare():
    time.sleep(3600)


if sys.argv[1] == "late" and RANK == 1:
    prepare()
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
# torchrun has one for its ranks.
is_master = RANK == 0 and "TORCHELASTIC_RUN_ID" not in os.environ
store = dist.TCPStore(host, port, is_master=is_master, wait_for_workers=False)
if sys.argv[1] == "apart":
    # Where each rank looks nobody else leaves an address.
    store = dist.PrefixStore(f"rank {RANK}", store)
dist.init_process_group("gloo", store=store, rank=RANK, world_size=RANKS)
