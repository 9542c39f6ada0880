"""Parameters whose shape is not known yet, as those of ``nn.LazyLinear``.

They have no data that could be on a GPU, so they remember where it has to go.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from allranks.vgpu.machine import Where, is_virtual

LATER = "_device_and_dtype_of_data_to_come"
CLASSES = UninitializedParameter, UninitializedBuffer
Mixin = UninitializedParameter.__mro__[1]  # which has no public name
_own_materialize = Mixin.materialize


def to(
    lazy: torch.Tensor, device: torch.device, dtype: torch.dtype | None
) -> torch.Tensor:
    """Remember where the data goes; return the same object."""
    vars(lazy)[LATER] = device, dtype
    return lazy


def materialize(
    self: torch.Tensor,
    shape: Sequence[int],
    device: Where = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Make the data of a parameter or buffer, on the device that it was moved to."""
    later = vars(self).pop(LATER, (None, None))
    device, dtype = device or later[0], dtype or later[1]
    virtual = device is not None and is_virtual(torch.device(device))
    _own_materialize(self, shape, "cpu" if virtual else device, dtype)
    if virtual:
        self.data = self.data.to(device)


def _made(own: Any) -> Any:
    def __new__(cls: type, *args: Any, device: Where = None, **how: Any) -> Any:
        where = torch.empty(0, device=device).device  # or of the block's
        if not is_virtual(where):
            return own(cls, *args, device=device, **how)
        return to(own(cls, *args, device="cpu", **how), where, how.get("dtype"))

    return staticmethod(__new__)


PATCHES = [
    (Mixin, "materialize", materialize),
    *((cls, "__new__", _made(cls.__new__)) for cls in CLASSES),
]
