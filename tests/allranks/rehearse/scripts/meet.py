"""Import a package that needs CUDA to be installed, and forget to move a mask."""

import flash_attn
import torch
from torch import nn


class Masked(nn.Module):
    """A layer whose mask is no buffer, so .cuda() leaves it where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.mask = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return flash_attn.func(self.linear(x)) * self.mask


Masked().cuda()(torch.ones(2, 4, device="cuda"))
