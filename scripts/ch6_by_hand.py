"""Chapter 6 - By hand: a stage on each rank, micro-batches by send and recv.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch6_by_hand.py
"""

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


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


def train_step(stage, shape, x, y, num: int) -> torch.Tensor:
    """All micro-batches forward, then all backward; the last rank's loss."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    held = []  # what each micro-batch keeps in memory until its backward
    for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
        if rank > 0:  # not the images: what the stage before made of them
            piece = torch.empty(len(piece), *shape, device=x.device)
            dist.recv(piece, rank - 1)
            piece.requires_grad_()
        output = stage(piece)
        if rank < last:
            dist.send(output.detach(), rank + 1)
        else:
            loss = nn.functional.cross_entropy(output, target)
            output = loss * len(piece) / len(x)  # its share of the mean
        held.append((piece, output))
    for piece, output in held:
        gradient = None  # a loss starts with 1 by itself
        if rank < last:
            gradient = torch.empty_like(output)
            dist.recv(gradient, rank + 1)
        output.backward(gradient)
        if rank > 0:
            dist.send(piece.grad, rank - 1)
    return sum(output.detach() for _, output in held if rank == last)


def train(args, rank: int, world_size: int, device) -> list[torch.Tensor]:
    """Train this rank's stage; return the loss at each step, if it is last."""
    torch.manual_seed(args.seed)  # all make the same net; each keeps its part
    train_set, _, net = make_task(args.samples)
    if world_size > len(net):
        raise SystemExit(f"{world_size} ranks > {len(net)} layers")
    start, end = (len(net) * r // world_size for r in (rank, rank + 1))
    shape = net[:start](train_set[:1][0]).shape[1:]  # of what comes in
    stage = net[start:end].to(device)
    say(f"layers {start} to {end - 1}; a sample comes as {tuple(shape)}")
    group = {"params": list(stage.parameters())}  # a pooling layer has none
    optimizer = torch.optim.SGD([group], args.lr, 0.9)
    dice, losses = torch.Generator(), []
    sampler = RandomSampler(train_set, generator=dice)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    for epoch in range(args.epochs):
        dice.manual_seed(args.seed + epoch)  # the same order on all ranks
        for x, y in loader:
            optimizer.zero_grad()
            x, y = x.to(device), y.to(device)
            loss = train_step(stage, shape, x, y, args.microbatches)
            losses.append(torch.as_tensor(loss))
            optimizer.step()
        if rank == world_size - 1:
            loss = torch.stack(losses[-len(loader) :]).mean()
            say(f"{epoch=} {loss=:.4f}")
    return losses


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse what cannot be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = {"--epochs": 3, "--batch-size": 192, "--samples": 1440}
    numbers |= {"--microbatches": 4, "--seed": 0, "--lr": 0.05}
    for flag, default in numbers.items():
        parser.add_argument(flag, type=type(default), default=default)
    args = parser.parse_args(argv)
    for name in "epochs", "batch_size", "samples", "microbatches", "lr":
        if not 0 < vars(args)[name] < float("inf"):
            raise SystemExit(f"{name} {vars(args)[name]}: must be above 0")
    return args


if __name__ == "__main__":
    train(parse_args(), *setup())
    dist.destroy_process_group()
