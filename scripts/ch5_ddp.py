"""Chapter 5 - DistributedDataParallel: split the data, average the gradients.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch5_ddp.py
"""

import argparse
import gc
import os
import time
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_task(num: int) -> tuple[TensorDataset, TensorDataset, nn.Module]:
    """Handwritten digits, num to train on and 357 to test on, and a CNN."""
    x, y = map(torch.as_tensor, load_digits(return_X_y=True))
    x = x.to(torch.get_default_dtype()).view(-1, 1, 8, 8) / 16
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    parts = order[:1440][:num], order[1440:]
    layers = []  # much arithmetic, but only 158,538 numbers to send
    for channels in (1, 64), (64, 128), (128, 64):
        layers += [nn.Conv2d(*channels, 3, padding=1), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10)]
    return *(TensorDataset(x[i], y[i]) for i in parts), nn.Sequential(*layers)


def setup() -> tuple[int, int, torch.device]:
    """Join the group torchrun describes: (rank, world_size, device)."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit(__doc__)  # started with python, not torchrun
    device = torch.device("cpu")
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu is not None and gpu.type != "mps":  # a Mac's GPU has no collectives
        num_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
        if num_ranks > (num_gpus := torch.accelerator.device_count()):
            why = f"{num_ranks} ranks on this machine, but {num_gpus} GPUs"
            raise SystemExit(f"{why}: lower --nproc-per-node to {num_gpus}")
        device = torch.device(gpu.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    timeout = timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT_S", 300)))
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
        timeout=timeout,
        device_id=None if device.type == "cpu" else device,
    )
    return dist.get_rank(), dist.get_world_size(), device


def say(text: str) -> None:
    """Print one line in one write: two ranks' lines never merge."""
    who = f"[rank {dist.get_rank()}/{dist.get_world_size()}]"
    print(f"{who} {text}\n", end="", flush=True)


def load(args, config: dict, net: nn.Module, optimizer) -> dict:
    """Fill net and optimizer to --resume; exit if the file will not do."""
    state = {"config": config, "epoch": 0}
    try:
        if args.resume:
            state = torch.load(args.checkpoint, "cpu", weights_only=True)
            if state["config"] != config or state["epoch"] >= args.epochs:
                raise ValueError("epoch {epoch} of {config}".format(**state))
            net.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optim"])
        if os.path.exists(args.checkpoint):
            open(args.checkpoint, "ab").close()  # not a folder, say
        open(f"{args.checkpoint}.new", "ab").close()  # save() will: ask now
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        why = f"--checkpoint {args.checkpoint} will not do ({why})"
        raise SystemExit(f"{why}: name another or change flags") from None
    return state


def save(path: str, state: dict) -> None:
    """Write a new file, then rename it: no crash can break the old one."""
    try:
        with open(f"{path}.new", "wb") as file:  # buffered: it writes it all
            torch.save(state, file)
            file.flush()
            os.fsync(file)
        os.replace(f"{path}.new", path)
    except BaseException as error:  # a full disk, Ctrl-C: leave nothing half
        with suppress(OSError):
            os.remove(f"{path}.new")
        for cause in error, error.__context__:
            if isinstance(cause, OSError):
                why = f"{path} is not saved: {cause.strerror}"
                raise SystemExit(f"{why}: make room or name another") from None
        raise


def evaluate(net: nn.Module, test_set: TensorDataset, device) -> float:
    """Accuracy: each sample on exactly one rank, counts summed over ranks."""
    x, y = test_set[dist.get_rank() :: dist.get_world_size()]  # never padded
    with torch.no_grad():
        hits = net(x.to(device)).argmax(dim=1) == y.to(device)
    counts = torch.tensor([hits.sum(), len(hits)], device=device)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def train(args, rank: int, world_size: int, device) -> list[torch.Tensor]:
    """Train a replica on this rank's share; return its loss at each step."""
    torch.manual_seed(args.seed + rank)  # DDP copies rank 0's weights to all
    train_set, test_set, net = make_task(args.samples)
    if world_size > (num := len(train_set)):
        raise SystemExit(f"{world_size} ranks > {num} samples: start fewer")
    optimizer = torch.optim.SGD(net.to(device).parameters(), args.lr, 0.9)
    config = {"lr": args.lr, "samples": num, "seed": args.seed}
    state, losses = load(args, config, net, optimizer), []
    ddp = nn.parallel.DistributedDataParallel(net)
    sampler = DistributedSampler(train_set, seed=args.seed)  # equal shares
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    for epoch in range(state["epoch"], args.epochs):
        sampler.set_epoch(epoch)  # a new order, the same on all ranks
        start = time.perf_counter()
        for x, y in loader:
            loss = nn.functional.cross_entropy(ddp(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()  # DDP averages the gradients in here
            optimizer.step()
            losses.append(loss.detach())
        loss = torch.stack(losses[-len(loader) :]).mean()
        dist.all_reduce(loss, dist.ReduceOp.AVG)  # all ranks', not rank 0's
        rate = num / (time.perf_counter() - start)
        accuracy = evaluate(net, test_set, device)
        if rank == 0:
            state |= {"epoch": epoch + 1, "model": net.state_dict()}
            save(args.checkpoint, state | {"optim": optimizer.state_dict()})
            say(f"{epoch=} {loss=:.4f} {accuracy=:.4f} {rate:.0f} samples/s")
    return losses


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags (--batch-size is per rank); refuse what cannot be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = {"--epochs": 15, "--batch-size": 96, "--samples": 1440}
    for flag, default in (numbers | {"--seed": 0, "--lr": 0.05}).items():
        parser.add_argument(flag, type=type(default), default=default)
    parser.add_argument("--checkpoint", default="ch5_ddp.pt")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args(argv)
    for name in "epochs", "batch_size", "samples", "lr":
        if not 0 < vars(args)[name] < float("inf"):
            raise SystemExit(f"{name} {vars(args)[name]}: must be above 0")
    return args


if __name__ == "__main__":
    train(parse_args(), *setup())
    gc.collect()  # torch 2.13 may abort at exit if DDP's last work lives
    dist.destroy_process_group()
