"""Start two ranks with mp.spawn; with "fail", rank 1 raises."""

import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main(rank: int, store: str, fail: bool) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", store, rank=rank, world_size=2)
    total = torch.ones(1, device="cuda")
    dist.all_reduce(total)
    print(f"rank {rank}: {total.item():g}")
    if fail and rank == 1:
        raise ValueError("this rank fails")
    dist.destroy_process_group()


if __name__ == "__main__":
    print(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout)
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        mp.spawn(main, args=(store, "fail" in sys.argv), nprocs=2)
