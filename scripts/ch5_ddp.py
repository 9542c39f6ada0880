"""Chapter 5 - DistributedDataParallel: split the data, average the gradients.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch5_ddp.py
"""

import job  # first, since importing torch takes seconds

import gc
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import checkpoint
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
    if world_size > (num := len(train_set)):
        job.refuse(f"{world_size} ranks > {num} samples: start fewer")
    optimizer = torch.optim.SGD(net.to(device).parameters(), args.lr, 0.9)
    run = {"samples a step": world_size * args.batch_size, "ranks": world_size}
    run |= {k: v for k, v in vars(args).items() if type(v) in (int, float)}
    state, losses = checkpoint.resume(args, run, net, optimizer), []
    ddp = DDP(net)
    sampler = DistributedSampler(train_set, seed=args.seed)  # N / W each
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    for epoch in range(state["epoch"], args.epochs):
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
        job.finite(loss, f"{epoch=}")  # before a good checkpoint is replaced
        rate = num / (time.perf_counter() - start)
        accuracy = evaluate(net, test_set, device)
        if rank == 0:
            state |= {"epoch": epoch + 1, "model": net.state_dict()}
            state |= {"optim": optimizer.state_dict()}
            checkpoint.save(args.checkpoint, state)
            found = f"{epoch=} {loss=:.4f} {accuracy=:.4f}"
            job.say(f"{found} {rate:.0f} samples/s")
    return losses


def evaluate(net: nn.Module, test_set: TensorDataset, device) -> float:
    """Return the accuracy; each sample is counted on exactly one rank."""
    x, y = test_set[dist.get_rank() :: dist.get_world_size()]  # never padded
    with torch.no_grad():
        hits = net(x.to(device)).argmax(dim=1) == y.to(device)
    counts = torch.tensor([hits.sum(), len(hits)], device=device)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def parse_args(argv: list[str] | None = None):
    """Read the flags; --batch-size is per rank."""
    numbers = {"epochs": 8, "batch_size": 96, "samples": 1440, "seed": 0}
    parser = job.Flags(__doc__, **numbers, lr=0.05)
    checkpoint.add_flags(parser, "ch5_ddp.pt")
    parser.add_argument("--resume", action="store_true", help="go on in it")
    args = parser.parse_args(argv)
    checkpoint.probe(args.checkpoint)
    return args


if __name__ == "__main__":
    train(args := parse_args(), *setup(args))
    gc.collect()  # torch 2.13 may abort at exit if DDP's last work lives
    dist.destroy_process_group()
