"""Random numbers that belong to a device: ``torch.Generator(device="vgpu:1")``.

C++ cannot make a generator for a device type that it does not know. So this is a CPU
generator that reports another device, and a seed gives the numbers that it gives there.

A device that is called cuda has a default generator of its own, whose state is 16
bytes. As CUDA's Philox, it is a seed and an offset, and each op moves the offset on by
the numbers that it draws. DTensor reads and sets both, so that shards draw what the
whole would. The numbers are the CPU's for a seed mixed from the two, so they are not
those of a real GPU.
"""

import functools
import os
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

import torch

from allranks.vgpu.machine import Device, Where, current, is_virtual, kind

_plain = torch.Generator
LIMIT = 2**64
DEFAULT_SEED = 67280421310721  # torch's own, before anybody has seeded
_virtual: weakref.WeakValueDictionary = weakref.WeakValueDictionary()  # by address


class VirtualGenerator(_plain):
    """A source of random numbers for tensors on virtual GPUs."""

    def __new__(cls, device: Where) -> "VirtualGenerator":
        return super().__new__(cls)

    def __init__(self, device: Where) -> None:
        self._home = current().device(device)
        _virtual[self._cdata] = self  # since C++ passes on another Python object

    @property
    def device(self) -> torch.device:
        """Return the device that it was made for."""
        return torch.device(str(self._home))


def mix(seed: int, offset: int) -> int:
    """Mix two numbers into 32 bits, by the last steps of splitmix64.

    >>> mix(0, 0) != mix(0, 4) != mix(1, 4)
    True
    """
    x = (seed * 0x9E3779B97F4A7C15 + offset + 0x632BE59BD9B4E019) % LIMIT
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % LIMIT
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % LIMIT
    return (x ^ (x >> 31)) & 0xFFFFFFFF


class DeviceGenerator(VirtualGenerator):
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


class _Kind(type):
    """Makes every generator an instance of the class that replaces torch.Generator."""

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, _plain)


class Generator(metaclass=_Kind):
    """The class that replaces torch.Generator while virtual GPUs are plugged in."""

    def __new__(cls, device: Where = "cpu") -> torch.Generator:
        if not is_virtual(torch.device(device)):
            return _plain(device)
        if kind() == "cuda":
            return DeviceGenerator(current().device(device))
        return VirtualGenerator(device)


def ours(generator: torch.Generator) -> VirtualGenerator:
    """Return a GPU's generator, in place of the object that C++ passes on."""
    return _virtual[generator._cdata]


def default(device: Device) -> DeviceGenerator:
    """Return a device's default generator."""
    known = vars(device.machine).setdefault("generators", {})
    if device.physical not in known:
        known[device.physical] = DeviceGenerator(device)
    return known[device.physical]


def _draws(
    op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Tell whether an op draws numbers: on CUDA attention does so for a dropout only.

    No op with a switch for training draws without training.
    """
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    expected = {a.name: a.default_value for a in op._schema.arguments}
    given = expected | dict(zip(expected, args, strict=False)) | kwargs
    trains = given.get("train", True) is not False and given.get("training", True)
    return bool(trains and given.get("dropout_p", 1) > 0)


@contextmanager
def _draw_from(device: Device, kwargs: dict[str, Any]) -> Iterator[list]:
    """Let an op of torch's CPU draw from a GPU's generator instead of the CPU's.

    That is the device's own, or the one that the op was given.

    Yields:
        A list for the results, whose size says how far the generator goes on.
    """
    given, drawn = kwargs.get("generator"), []
    generator = default(device) if given is None else ours(given)
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


def drawing(
    op: torch._ops.OpOverload,
    home: Device,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> AbstractContextManager[list]:
    """Return the context in which an op draws random numbers on a device, if it does.

    A device of the kind "cuda" has a generator of its own; others draw from the CPU's.
    """
    if home.machine.kind == "cuda" and not home.is_host and _draws(op, args, kwargs):
        return _draw_from(home, kwargs)
    return nullcontext([])


def checked(draw: Callable) -> Callable:
    """Return a function that draws on the host, and with no GPU's generator.

    C++ cannot tell generators apart, so torch's own error is raised here.
    """

    @functools.wraps(draw)
    def run(*args: Any, **kwargs: Any) -> Any:
        drawn, given = draw(*args, **kwargs), kwargs.get("generator")
        host = type(drawn) in (torch.Tensor, torch.nn.Parameter)
        if host and given is not None and given._cdata in _virtual:
            raise RuntimeError(
                f"Expected a 'cpu' device type for generator but found '{kind()}'"
            )
        return drawn

    return run


def check(generator: torch.Generator | None) -> None:
    """Raise torch's own error for a generator of the CPU, which a GPU cannot use."""
    if generator is not None and generator._cdata not in _virtual:
        raise RuntimeError(
            f"Expected a '{kind()}' device type for generator but found 'cpu': "
            f'make it with torch.Generator(device="{kind()}")'
        )


DRAWS = {  # that do not make tensors of a size: see pinned
    torch: ("normal", "bernoulli", "multinomial", "poisson"),
    torch.Tensor: (
        "normal_",
        "uniform_",
        "random_",
        "bernoulli_",
        "exponential_",
        "geometric_",
        "cauchy_",
        "log_normal_",
        "multinomial",
        "bernoulli",
    ),
}
PATCHES = [
    (owner, name, checked(getattr(owner, name)))
    for owner, names in DRAWS.items()
    for name in names
]
