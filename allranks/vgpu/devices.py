"""What a machine of virtual GPUs consists of: its devices, their speeds, their log."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from allranks.vgpu.sizes import from_bytes

if TYPE_CHECKING:
    from allranks.vgpu.machine import Machine

Where = torch.device | str | int | None  # names a device; None is the current one


@dataclass(frozen=True)
class Costs:
    """The declared speeds behind the modelled clock: round numbers of no product.

    An op takes ``latency_s`` plus the longer of its arithmetic and its memory traffic.
    A copy takes ``latency_s`` plus its bytes over the link.

    Args:
        flops: floating-point operations per second; a multiply-add counts as two.
        memory: bytes per second that a device reads and writes in its own memory.
        link: bytes per second between two devices, or a device and the host.
        latency_s: seconds to start an op or a copy.
    """

    flops: float = 10e12
    memory: float = 500e9
    link: float = 16e9
    latency_s: float = 5e-6

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0 or (name != "latency_s" and value == 0):
                raise ValueError(f"Costs({name}={value}): must be above 0")


@dataclass(frozen=True, slots=True)
class Event:
    """One op on a device, or one copy between two places. Times are modelled."""

    device: str
    op: str
    shape: tuple[int, ...]
    start_s: float
    end_s: float
    num_bytes: int  # read and written by an op, moved by a copy
    source: str | None = None  # copies only: "cpu", "vgpu:0", "cuda:0", ...
    target: str | None = None
    label: str = ""


@dataclass(eq=False)
class Device:
    """One virtual GPU, with its sizes in bytes."""

    index: int
    capacity: int
    machine: "Machine" = field(repr=False)
    physical: int = 0  # its index before CUDA_VISIBLE_DEVICES renumbers
    allocated: int = 0
    peak: int = 0
    reserved: int = 0  # by a caching allocator: the peak since it was last emptied
    most_reserved: int = 0
    limit: int = 0  # bytes that the process may use, if it has set that itself
    taken: int = 0  # by all allocations ever made
    num_blocks: int = 0
    num_ooms: int = 0
    free_s: float = 0.0  # when it has done everything that it was given
    busy_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.machine.kind}:{self.index}"

    def __deepcopy__(self, memo: dict) -> "Device":
        """Return the device itself: a tensor's copy is on the same one."""
        return self

    def require(self, num_bytes: int, shape: Sequence[int] = ()) -> None:
        """Raise torch.OutOfMemoryError unless a number of additional bytes fits.

        An observer gets the shape of the tensor that they are for.
        """
        room = self.limit or self.capacity
        if self.allocated + num_bytes > room:
            self.num_ooms += 1
            if self.machine.observer is not None:
                self.machine.observer.lacks(self, shape, num_bytes)
            free = from_bytes(room - self.allocated)
            if self.machine.kind == "cuda":
                raise torch.OutOfMemoryError(self._cudas_sentence(num_bytes, free))
            raise torch.OutOfMemoryError(
                f"vGPU out of memory. Tried to allocate {from_bytes(num_bytes)}. "
                f"{self} has a total capacity of {from_bytes(self.capacity)} of which "
                f"{free} is free. {from_bytes(self.allocated)} is allocated by PyTorch."
            )

    def _cudas_sentence(self, num_bytes: int, free: str) -> str:
        """Return what CUDA's allocator says; scripts look for its first words."""
        taken = from_bytes(self.allocated)
        return (
            f"CUDA out of memory. Tried to allocate {from_bytes(num_bytes)}. GPU "
            f"{self.index} has a total capacity of {from_bytes(self.capacity)} of "
            f"which {free} is free. Process {os.getpid()} has {taken} memory in use. "
            f"Of the allocated memory {taken} is allocated by PyTorch, and 0 bytes is "
            "reserved by PyTorch but unallocated."
        )
