"""What torch's own nn.DataParallel needs from C++, for virtual GPUs.

A CUDA build has these functions in ``torch._C``; the CPU build lacks them. With them
the real ``scatter``, ``replicate``, ``parallel_apply`` and ``gather`` run as they are.
Autograd is not needed here: torch wraps each in a Function of its own.
"""

import torch

from allranks.vgpu.machine import current
from allranks.vgpu.moves import move


class Stream:
    """A stream that does nothing: each virtual GPU has one, and works in order."""

    def __init__(self, device: torch.device):
        self.device = device

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def wait_stream(self, other) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""


def _to(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """Copy to a device, or return the tensor if it is there. -1 is the host."""
    machine = current()
    target = torch.device("cpu") if index == -1 else torch.device("vgpu", index)
    return tensor if tensor.device == target else move(tensor, target, machine)


def scatter(tensor, devices, chunk_sizes=None, dim=0, streams=None):
    """Cut a tensor along a dimension, one piece per device; fewer if it is short."""
    pieces = (
        tensor.chunk(len(devices), dim)
        if chunk_sizes is None
        else tensor.split(list(chunk_sizes), dim)
    )
    return [_to(piece, index) for piece, index in zip(pieces, devices, strict=False)]


def gather(tensors, dim, destination=None):
    """Join tensors of several devices on one."""
    if destination is None:
        destination = current().device(None).index
    return torch.cat([_to(tensor, destination) for tensor in tensors], dim)


def broadcast(tensor, devices):
    """Copy a tensor to each device."""
    return [_to(tensor, index) for index in devices]


def broadcast_coalesced(tensors, devices, buffer_size):
    """Copy tensors to each device. Returns one list per device."""
    return [[_to(tensor, index) for tensor in tensors] for index in devices]
