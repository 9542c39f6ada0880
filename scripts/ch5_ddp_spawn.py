"""Chapter 5 - DDP without torchrun: start the ranks yourself.

Run it (no GPU needed):
    python scripts/ch5_ddp_spawn.py --epochs 3
"""

import job  # first, since importing torch takes seconds

import gc
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from ch5_ddp import evaluate
from tasks import make_task


def setup(args) -> tuple[int, int, torch.device]:
    """Join the group that torchrun describes: (rank, world_size, device)."""
    timeout, device = job.launched(), torch.device("cpu")
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu and gpu.type != "mps":  # no backend works with a Mac's GPU
        device = torch.device(gpu.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    dist.init_process_group(
        dist.get_default_backend_for_device(device),  # nccl, or gloo
        timeout=timeout,
        device_id=device if device.type != "cpu" else None,
    )
    job.agree(args)
    return dist.get_rank(), dist.get_world_size(), device


def train(args, rank: int, world_size: int, device) -> list[torch.Tensor]:
    """Train a replica on this rank's share; return its loss at each step."""
    torch.manual_seed(args.seed + rank)  # DDP copies rank 0's weights to all
    train_set, test_set, net = make_task(args.samples)  # N samples
    num = len(train_set)
    optimizer = torch.optim.SGD(net.to(device).parameters(), args.lr, 0.9)
    ddp = DDP(net)
    sampler = DistributedSampler(train_set, seed=args.seed)  # N / W each
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    losses = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # a new order, the same on all ranks
        start = time.perf_counter()
        for x, y in loader:  # (B, 1, 8, 8), (B,): this rank's samples
            loss = nn.functional.cross_entropy(ddp(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()  # DDP averages the gradients in here
            optimizer.step()
            losses.append(loss.detach())
        loss = torch.stack(losses[-len(loader) :]).mean()
        dist.all_reduce(loss, dist.ReduceOp.AVG)  # all ranks', not rank 0's
        job.finite(loss, f"{epoch=}")
        rate = num / (time.perf_counter() - start)
        accuracy = evaluate(net, test_set, device)
        if rank == 0:
            found = f"{epoch=} {loss=:.4f} {accuracy=:.4f}"
            job.say(f"{found} {rate:.0f} samples/s")
    return losses


def parse_args(argv: list[str] | None = None):
    """Read the flags; --batch-size is per rank."""
    numbers = {"epochs": 8, "batch_size": 96, "samples": 1440, "seed": 0}
    parser = job.Flags(__doc__, **numbers, lr=0.05, nproc_per_node=2)
    return parser.parse_args(argv)


def run_rank(local_rank: int, args, port: int) -> None:
    """Set what torchrun would have set, then do what it would have run."""
    os.environ |= {
        "RANK": str(local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(args.nproc_per_node),
        "LOCAL_WORLD_SIZE": str(args.nproc_per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the parent serves the port
    }
    train(args, *setup(args))
    gc.collect()  # torch 2.13 may abort at exit if DDP's last work lives
    dist.destroy_process_group()


def main() -> None:
    """Serve the store that ranks meet at, start them, end all if one fails."""
    args = parse_args()
    if (num := args.nproc_per_node) > args.samples:
        job.refuse(f"{num} ranks > {args.samples} samples: start fewer")
    os.environ["PARENT_PID"] = str(os.getpid())  # job.py watches it
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # cores are for ranks
    # Port 0: the system picks a free one, and no other process can take it.
    host = "127.0.0.1"
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    try:
        mp.spawn(run_rank, (args, store.port), args.nproc_per_node)
    except mp.ProcessExitedException as error:
        job.refuse(f"ended all ranks: {error}")


if __name__ == "__main__":
    main()
