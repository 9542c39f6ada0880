"""``torch.device(1)``: a bare number names a device of the accelerator, which is CUDA.

C++ takes the free device type, with our name, for the accelerator. So torch.device is
replaced by a class that makes torch's own devices, and cuda ones out of numbers.
"""

from typing import Any

import torch

Device = torch.device


class _Factory(type):
    """What makes the stand-in answer as torch.device does, wherever it is compared."""

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        """Make a device of torch's own type."""
        if len(args) == 1 and not kwargs and type(args[0]) is int:
            return Device("cuda", args[0])
        return Device(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Device)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is Device

    def __hash__(cls) -> int:
        return hash(Device)


class device(metaclass=_Factory):
    """Stands for torch.device while virtual GPUs answer to cuda."""


device.__module__, device.__qualname__ = Device.__module__, Device.__qualname__
