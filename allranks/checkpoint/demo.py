"""Make a checkpoint as a careless training script would."""

from pathlib import Path

import torch
from torch import nn

from allranks.checkpoint.writing import write


def demo(file: Path, force: bool = False) -> list[str]:
    """Train a little, then save too much: wrappers' names get into it."""
    from sklearn.datasets import load_digits  # slow, and only needed here

    torch.manual_seed(0)
    x, y = map(torch.as_tensor, load_digits(return_X_y=True))
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(60):
        loss = nn.functional.cross_entropy(net(x.float() / 16), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    wrapped = torch.compile(nn.DataParallel(net))
    state = {"model": wrapped.state_dict(), "optim": optimizer.state_dict()}
    write(state | {"epoch": 60}, file, force)
    return [f"{file}: loss={loss:.4f} after 60 epochs"]
