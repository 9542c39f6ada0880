"""Random numbers of a GPU: each device has a generator, whose state is 16 bytes.

As CUDA's Philox, it is a seed and an offset, and each op moves the offset on by the
numbers that it draws. DTensor reads and sets both, so that shards draw what the whole
would. The numbers are the CPU's for a seed mixed from the two, so they are not those of
a real GPU.
"""

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import Any, Self

import torch

from allranks.vgpu import generators
from allranks.vgpu.machine import Device

LIMIT = 2**64
DEFAULT_SEED = 67280421310721  # torch's own, before anybody has seeded


def mix(seed: int, offset: int) -> int:
    """Mix two numbers into 32 bits, by the last steps of splitmix64.

    >>> mix(0, 0) != mix(0, 4) != mix(1, 4)
    True
    """
    x = (seed * 0x9E3779B97F4A7C15 + offset + 0x632BE59BD9B4E019) % LIMIT
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % LIMIT
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % LIMIT
    return (x ^ (x >> 31)) & 0xFFFFFFFF


class DeviceGenerator(generators.VirtualGenerator):
    """A device's default generator, or ``torch.Generator("cuda")`` of the user's."""

    def __init__(self, device: Device) -> None:
        super().__init__(device.index)
        self._seed, self._offset = DEFAULT_SEED, 0

    def manual_seed(self, seed: int) -> Self:
        """Begin anew with a seed."""
        self._seed, self._offset = int(seed) % LIMIT, 0
        return self

    def seed(self) -> int:
        """Begin anew with a random seed, and return it."""
        self.manual_seed(int.from_bytes(os.urandom(7), "little"))
        return self._seed

    def initial_seed(self) -> int:
        """Return the seed."""
        return self._seed

    def get_offset(self) -> int:
        """Return how many numbers have been drawn, in fours."""
        return self._offset

    def set_offset(self, offset: int) -> None:
        """Go to a place in the row of numbers."""
        self._offset = int(offset)

    def get_state(self) -> torch.Tensor:
        """Return seed and offset as 16 bytes on the CPU."""
        raw = struct.pack("<QQ", self._seed, self._offset % LIMIT)
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> Self:
        """Take over seed and offset.

        Raises:
            RuntimeError: if it has another size, such as that of the CPU's generator.
        """
        if state.dtype != torch.uint8 or state.numel() != 16:
            raise RuntimeError(
                f"RNG state is wrong size: a GPU's has 16 bytes, not {state.numel()}"
            )
        raw = bytes(state.cpu().tolist())
        self._seed, self._offset = struct.unpack("<QQ", raw)
        return self

    graphsafe_get_state, graphsafe_set_state = get_state, set_state

    def clone_state(self) -> "DeviceGenerator":
        """Return a generator of the same device in the same state."""
        return DeviceGenerator(self._home).set_state(self.get_state())


def of(device: Device) -> DeviceGenerator:
    """Return a device's default generator."""
    known = vars(device.machine).setdefault("generators", {})
    if device.physical not in known:
        known[device.physical] = DeviceGenerator(device)
    return known[device.physical]


@contextlib.contextmanager
def drawing(device: Device, kwargs: dict[str, Any]) -> Iterator[list]:
    """Let an op of torch's CPU draw from a GPU's generator instead of the CPU's.

    That is the device's own, or the one that the op was given.

    Yields:
        A list for the results, whose size says how far the generator goes on.
    """
    given, drawn = kwargs.get("generator"), []
    generator = of(device) if given is None else generators.ours(given)
    host = torch.default_generator
    if "generator" in kwargs:
        kwargs["generator"] = None  # some overloads insist on the argument
    before = host.get_state()
    host.manual_seed(mix(generator._seed, generator._offset))
    try:
        yield drawn
    finally:
        host.set_state(before)
        numbers = max(
            (t.numel() for t in drawn if isinstance(t, torch.Tensor)), default=1
        )
        generator._offset += 4 * -(-numbers // 4)
