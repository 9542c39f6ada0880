"""Buffers, and tensors that modules hold unregistered: which may differ by rank.

BatchNorm's statistics are each rank's own between two forward passes, so a buffer that
every rank changes is left alone from then on. A buffer that differs and no longer
changes is a mistake, and so is one that some ranks change again and again while others
never do.
"""

from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from allranks.guard.configuration import attributes
from allranks.guard.exchange import Exchange, names

LARGE = 1 << 24  # elements; an attribute that has more is a cache
SLOTS = 1 << 17  # a buffer with more is not looked through
STILL = "No rank has changed it since the check before: it will stay so."
LOST = (
    "each rank writes its own samples into some slots of the buffer {}, and at the "
    "next forward DDP overwrites them with rank 0's: what the others wrote is lost. "
    "Gather all ranks' before they are written, or put broadcast_buffers=False."
)


class Buffers:
    """Finds the tensors that ranks change by themselves, and judges those that differ.

    They are of two kinds. A "buffer" is registered. An "attribute" is a tensor that a
    module holds without registering it, so no wrapper sends it to other ranks. If it
    has been there since the guard was built, and is not the same on all ranks, each
    rank made a constant by itself. An attribute that changes belongs to its rank.
    """

    def __init__(self, exchange: Exchange, model: nn.Module) -> None:
        self.exchange, self.model = exchange, model
        self.per_rank: set[str] = set()  # those of which each rank may have its own
        self.waiting: dict[str, dict] = {}  # of each kind, what differed last time
        self.changes: dict[str, list[set[int]]] = {}  # ranks that changed it, by check
        self.places: dict[str, str] = {}  # where each kind was judged last
        self.sizes: dict[str, int] = {}  # of the lists and dicts that hold tensors
        self.first = _states(self.attributes())
        self.first_sizes = dict(self.sizes)
        self.last: dict[str, tuple] = {}  # buffers, as they were at the check before

    def attributes(self) -> dict[str, torch.Tensor]:
        """Return every tensor among the attributes, or in a list or dict there."""
        tensors: dict[str, torch.Tensor] = {}
        for key, value in attributes(self.model):
            inside = []
            if isinstance(value, list | tuple):
                inside = [(f"{key}[{i}]", x) for i, x in enumerate(value[:999])]
            elif isinstance(value, dict) and len(value) < 1000:
                inside = [(f"{key}[{i!r}]", x) for i, x in value.items()]
            own = {} if inside else {key: value}
            for at, item in inside:
                own[at] = item
                if isinstance(item, nn.Module):  # not registered, in a plain list
                    parts = [*item.named_parameters(), *item.named_buffers()]
                    own |= {f"{at}.{name}": tensor for name, tensor in parts}
            own = {at: item for at, item in own.items() if _fits(item)}
            self.sizes |= dict.fromkeys(own, len(value) if inside else 0)
            tensors |= own
        return tensors

    def written(self, kind: str, name: str, tensor: torch.Tensor) -> bool:
        """Tell whether this rank wrote to a tensor.

        Of an attribute any write since the guard was built counts, of a buffer only one
        since the last check.
        """
        known = self.last if kind == "buffer" else self.first
        first, version = known.get(name, (None, 0))
        if kind == "attribute" and self.sizes[name] != self.first_sizes.get(name):
            return True  # it is in a list that grows, or was made later than the guard
        if first is None:
            return kind == "attribute"
        return first() is not tensor or version != tensor._version

    def checked(self) -> None:
        """Remember the buffers as they are at this check."""
        buffers = {n: b for n, b in self.model.named_buffers() if not b.is_inference()}
        self.last = _states(buffers)

    def equal(self, kind: str) -> None:
        """Forget which tensors of a kind differed, because they no longer do."""
        self.waiting.pop(kind, None)

    def wrong(
        self, where: str, kind: str, different: list[tuple[str, torch.Tensor, list]]
    ) -> tuple[list[tuple[str, torch.Tensor, list]], str]:
        """Return which of the tensors that differ are wrong, and why.

        Args:
            where: what this check is called.
            kind: "buffer" or "attribute".
            different: name, tensor, and a digest of each rank's copy.
        """
        if self.places.get(kind) == where:
            return [], ""  # a second look in one step: nothing can have changed
        self.places[kind] = where
        # One difference proves nothing: ranks may write to a buffer in every step. Two
        # in a row show who still writes to it.
        still, partly, who = [], [], []
        waiting = self.waiting.get(kind, {})
        self.waiting[kind] = {name: now for name, _, now in different}
        for item in different:
            name, _, now = item
            before = waiting.get(name)
            if before is None:
                continue
            changed = {i for i, v in enumerate(now) if v != before[i]}
            if not changed:
                still.append(item)
                continue
            past = self.changes.setdefault(name, [])
            past.append(changed)
            ever = set().union(*past)
            if len(ever) == len(now) or kind == "attribute":
                self.per_rank.add(name)
            elif len(past) > 1:
                partly.append(item)
                who = sorted(self.exchange.ranks[i] for i in ever)
        if still or not partly:
            return still, STILL
        one = "changes" if len(who) == 1 else "change"
        return partly, (
            f"Only {names(who)} {one} it: change it on every rank, with the same "
            "values, or reduce what it is made of over the ranks."
        )

    def warn_of_queue(self, where: str, name: str, tensor: torch.Tensor) -> None:
        """Warn if a buffer that differs is a queue or a memory bank, not a statistic.

        Right after DDP's broadcast all ranks had the same buffer. Since then, a
        statistic has changed in every element, but a queue has some slots that are all
        new and others that are as before.
        """
        model = self.model
        ddp = isinstance(model, DistributedDataParallel)
        if not ddp or not model.broadcast_buffers:
            return
        owner = type(model.get_submodule(name.rpartition(".")[0]))
        plain = type(tensor) in (torch.Tensor, nn.Buffer) and tensor.is_floating_point()
        if owner.__module__.startswith("torch.") or tensor.dim() < 2 or not plain:
            return
        if sum(tensor.shape) > SLOTS:
            return
        values = tensor.detach().cpu().double()
        own = [int((values != values.round()).any())]
        for dim in range(values.dim()):  # one number for each slice along it
            flat = values.movedim(dim, 0).flatten(1)
            factors = torch.arange(1, flat.shape[1] + 1, dtype=torch.float64).sqrt()
            own += (flat * factors).sum(1).view(torch.int64).tolist()
        # (W, 1 + sum of the shape): whether it has fractions, and a number per slice.
        table = torch.tensor(self.exchange.integers(f"{where}: slots of {name}", own))
        if not table[:, 0].all():
            return  # whole numbers are counts
        equal = (table[:, 1:] == table[0, 1:]).all(0)
        kept = equal & (table[0, 1:] != 0)  # empty slots belong to a cache
        # Slots lie along one dim, in which some are equal; along the others none is.
        some = [
            bool(same.any())
            for same in equal.split(list(values.shape))
            if not same.all()
        ]
        if some.count(True) == 1 and len(some) == values.dim() and kept.any():
            self.exchange.warn(LOST.format(name))


def _states(tensors: dict[str, torch.Tensor]) -> dict[str, tuple]:
    """Note which tensors these are, and how often they were written to in place."""
    return {name: (ref(tensor), tensor._version) for name, tensor in tensors.items()}


def _fits(value: Any) -> bool:
    if not torch.is_tensor(value) or value.is_inference() or value.is_meta:
        return False
    try:
        leaf = value.is_leaf and 0 < value.numel() <= LARGE
    except RuntimeError:  # a view of what was changed in place, as FSDP1 leaves them
        return False
    plain = value.layout == torch.strided and not hasattr(value, "placements")
    # One whole number is a rank or a count, which ranks may have for themselves.
    alone = value.numel() == 1 and not value.is_floating_point()
    return plain and leaf and not alone and not value.is_quantized
