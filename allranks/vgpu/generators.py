"""``torch.Generator(device="vgpu:1")``: random numbers that belong to a device.

C++ cannot make a generator for a device type that it does not know. So this is a CPU
generator that reports another device, and a seed gives the numbers that it gives there.
"""

import functools
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from allranks.vgpu.machine import Device, Where, current, is_virtual, kind

_plain = torch.Generator
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
            from allranks.vgpu.cuda.random import DeviceGenerator

            return DeviceGenerator(current().device(device))
        return VirtualGenerator(device)


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


def drawing(
    op: torch._ops.OpOverload,
    home: Device,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> AbstractContextManager[list]:
    """Return the context in which an op draws random numbers on a device, if it does.

    A device of the kind "cuda" has a generator of its own; others draw from the CPU's.
    """
    if home.machine.kind == "cuda" and _draws(op, args, kwargs):
        from allranks.vgpu.cuda import random

        return random.drawing(home, kwargs)
    return nullcontext([])


def ours(generator: torch.Generator) -> VirtualGenerator:
    """Return a GPU's generator, in place of the object that C++ passes on."""
    return _virtual[generator._cdata]


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
