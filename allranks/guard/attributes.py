"""Tensors that a model holds, but has not registered: nobody sends them."""

from weakref import ref

import torch
from torch import nn

from .constants import constants, lines
from .sharded import WRAPPERS

LARGE = 1 << 24  # elements: larger ones are caches
BASE = frozenset(vars(nn.Module()))


class Attributes:
    """Finds tensors among the modules' attributes, and knows what was written to.

    A tensor that has been there since the guard came, and is not the same on all ranks,
    is a constant that each rank made by itself. One that changes is a rank's own.
    """

    def __init__(self, model: nn.Module):
        self.model, self.settings = model, constants(attributes(model))
        self.sizes: dict[str, int] = {}  # of the lists and dicts that hold tensors
        self.first = states(self.tensors())
        self.first_sizes = dict(self.sizes)
        self.buffers: dict[str, tuple] = {}  # as they were at the check before

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor among the attributes, or in lists and dicts there, by name."""
        found: dict[str, torch.Tensor] = {}
        for key, value in attributes(self.model):
            inside = []
            if isinstance(value, list | tuple):
                inside = [(f"{key}[{i}]", x) for i, x in enumerate(value[:999])]
            elif isinstance(value, dict) and len(value) < 1000:
                inside = [(f"{key}[{i!r}]", x) for i, x in value.items()]
            own = {} if inside else {key: value}
            for at, item in inside:
                own[at] = item
                if isinstance(item, nn.Module):  # in a plain list: not registered
                    parts = [*item.named_parameters(), *item.named_buffers()]
                    own |= {f"{at}.{name}": tensor for name, tensor in parts}
            own = {at: item for at, item in own.items() if _fits(item)}
            self.sizes |= dict.fromkeys(own, len(value) if inside else 0)
            found |= own
        return found

    def written(self, kind: str, name: str, tensor: torch.Tensor) -> bool:
        """Whether a buffer was written to since the check before, an attribute ever."""
        known = self.buffers if kind == "buffer" else self.first
        first, version = known.get(name, (None, 0))
        if kind == "attribute" and self.sizes[name] != self.first_sizes.get(name):
            return True  # a list that grows is a record, or it came later
        if first is None:
            return kind == "attribute"
        return first() is not tensor or version != tensor._version

    def checked(self) -> None:
        """Remember the buffers as they are at this check."""
        buffers = {n: b for n, b in self.model.named_buffers() if not b.is_inference()}
        self.buffers = states(buffers)

    def constant(self) -> str:
        """Those of the settings that are as they were at the start, in lines."""
        now = constants(attributes(self.model))
        return lines({n: v for n, v in self.settings.items() if now.get(n) == v})


def states(tensors: dict[str, torch.Tensor]) -> dict[str, tuple]:
    """Which tensors these are, and how often they were written to in place."""
    return {name: (ref(tensor), tensor._version) for name, tensor in tensors.items()}


def attributes(model: nn.Module):
    """Name and value of what the modules hold, without what torch keeps there."""
    for name, module in model.named_modules():
        ours = type(module).__module__.startswith("torch.")
        if isinstance(module, WRAPPERS):
            continue  # they list the tensors of what they wrap
        for key, value in vars(module).items():
            if key not in BASE and not (ours and key.startswith("_")):
                yield f"{name}.{key}" if name else key, value


def _fits(value) -> bool:
    if not torch.is_tensor(value) or value.is_inference() or value.is_meta:
        return False
    try:
        leaf = value.is_leaf and 0 < value.numel() <= LARGE
    except RuntimeError:  # a view of what was changed in place, as FSDP1 leaves them
        return False
    plain = value.layout == torch.strided and not hasattr(value, "placements")
    alone = value.numel() == 1 and not value.is_floating_point()  # a rank, a count
    return plain and leaf and not alone and not value.is_quantized
