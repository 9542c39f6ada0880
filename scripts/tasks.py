"""What the scripts train: handwritten digits and a CNN, a novel and a GPT."""

import job

import os
from importlib.metadata import distribution

import numpy
import torch
from torch import nn
from torch.utils.data import TensorDataset


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Read scikit-learn's digits, (1797, 64) of 0 to 16 and (1797,).

    Its own function gives the same, but importing it takes each rank a second.
    """
    file = "sklearn/datasets/data/digits.csv.gz"
    path = distribution("scikit-learn").locate_file(file)
    table = torch.as_tensor(numpy.loadtxt(path, delimiter=","))
    return table[:, :-1], table[:, -1].long()


def make_task(num: int) -> tuple[TensorDataset, TensorDataset, nn.Module]:
    """Make handwritten digits, num to train on and 357 to test, and a CNN."""
    x, y = load_digits()
    x = x.to(torch.get_default_dtype()).view(-1, 1, 8, 8) / 16
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    parts = order[:1440][:num], order[1440:]
    layers = []  # much arithmetic, but only 158,538 numbers to send
    for channels in (1, 64), (64, 128), (128, 64):
        layers += [nn.Conv2d(*channels, 3, padding=1), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10)]
    return *(TensorDataset(x[i], y[i]) for i in parts), nn.Sequential(*layers)


def read_digits(num: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return num handwritten digits: (num, 64) and (num,)."""
    x, y = (part[:num] for part in load_digits())
    return x.float().to(device) / 16, y.to(device)


def read_text() -> tuple[torch.Tensor, torch.Tensor]:
    """Read "Frankenstein" as bytes: nine tenths to train on, one to test."""
    path = os.path.join(os.path.dirname(__file__), "frankenstein.txt")
    try:
        with open(path, "rb") as file:
            text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        why = f"{path}: {getattr(error, 'strerror', error)}"
        job.refuse(f"{why}: put the book's copy beside this script")
    return text.split([len(text) - len(text) // 10, len(text) // 10])


class Block(nn.Module):
    """Each byte looks at those before it, then goes through a small net."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.mix = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor, mask=None) -> torch.Tensor:
        """Map (B, T, dim) to the same; a mask says who may look at whom."""
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        heads = (p.unflatten(-1, (self.heads, -1)) for p in parts)
        seen = nn.functional.scaled_dot_product_attention(
            *(h.transpose(1, 2) for h in heads),  # (B, heads, T, dim / heads)
            attn_mask=mask,
            is_causal=mask is None,
        )
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A small GPT: it predicts the next byte of a text."""

    def __init__(self, dim=64, layers=2, heads=4, context=64) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, dim)
        self.positions = nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 256)

    def forward(self, x: torch.Tensor, mask=None, positions=None):
        """Map bytes (B, T) to logits (B, T, 256)."""
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        x = self.bytes(x) + self.positions(positions)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def cut(text: torch.Tensor, starts: torch.Tensor, context: int):
    """Return windows of the text, (B, T), and the byte after each byte."""
    at = starts[:, None] + torch.arange(context)
    return text[at].long(), text[at + 1].long()


def loss_on(net, text: torch.Tensor, starts, device) -> torch.Tensor:
    """Return the mean loss per byte on windows of 64 bytes of a text."""
    x, y = (part.to(device) for part in cut(text, starts, 64))  # (B, T)
    return nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
