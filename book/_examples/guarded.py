"""A training under the guard: torchrun --standalone --nproc-per-node 2 guarded.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from allranks.guard import Guard


def loss_of(model, batch):
    """Compute the mean loss of a batch, as one process would."""
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def train(epochs=3):
    """Train for some epochs; return the test error of all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # to make the same data on all ranks
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    model = DDP(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler)

    torch.manual_seed(rank)  # from here on, each draws its own, as dropout should

    watch = Guard(model, optimizer)  # 1
    watch.preflight(loss_of, data[8 * rank : 8 * rank + 8])
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in watch.epoch(loader, epoch):  # 2
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            watch.step()  # 3
            optimizer.step()

    x, y = data[rank::size]  # each sample on exactly one rank
    with torch.no_grad():
        total = (model.module(x) - y).square().sum()
    error = watch.mean(total, len(x))
    watch.metric(error, total, len(x), samples=len(data))
    watch.remove()
    return error


if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(f"{train():.3f}\n", end="")
    dist.destroy_process_group()
