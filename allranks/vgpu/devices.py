"""One virtual GPU and what it counts, and one event of the log."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from allranks.vgpu.sizes import from_bytes

if TYPE_CHECKING:
    from allranks.vgpu.machine import Machine


@dataclass(frozen=True, slots=True)
class Event:
    """One op on a device, or one copy between two places. Times are modelled."""

    device: str
    op: str
    shape: tuple[int, ...]
    start_s: float
    end_s: float
    num_bytes: int  # read and written by an op, moved by a copy
    source: str | None = None  # copies only: "cpu", "vgpu:0", ...
    target: str | None = None
    label: str = ""


@dataclass(eq=False)
class Device:
    """One virtual GPU. Sizes in bytes."""

    index: int
    capacity: int
    machine: "Machine" = field(repr=False)
    allocated: int = 0
    peak: int = 0
    reserved: int = 0  # what a caching allocator would hold: the peak since it emptied
    most_reserved: int = 0
    taken: int = 0  # in all, ever
    num_blocks: int = 0
    num_ooms: int = 0
    free_s: float = 0.0  # when it has done all that it was given
    busy_s: float = 0.0

    def __str__(self) -> str:
        return f"vgpu:{self.index}"

    def require(self, num_bytes: int) -> None:
        """Raise torch.OutOfMemoryError unless that many more bytes fit."""
        if self.allocated + num_bytes > self.capacity:
            self.num_ooms += 1
            free = from_bytes(self.capacity - self.allocated)
            raise torch.OutOfMemoryError(
                f"vGPU out of memory. Tried to allocate {from_bytes(num_bytes)}. "
                f"{self} has a total capacity of {from_bytes(self.capacity)} of which "
                f"{free} is free. {from_bytes(self.allocated)} is allocated by PyTorch."
            )
