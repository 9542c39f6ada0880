"""Rank 1 fails: torchrun --standalone --nproc-per-node 2 fails.py [--record]"""

import sys
import time

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def main():
    """Fail on rank 1, while rank 0 works."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        raise ValueError("no sample in batch 3")
    time.sleep(60)  # stands for work


if __name__ == "__main__":
    if "--record" in sys.argv:
        main = record(main)  # what @record above main does
    main()
