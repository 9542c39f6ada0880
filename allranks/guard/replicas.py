"""Invariant: ranks that should hold equal tensors and settings hold equal ones.

The message names what differs, down to the element, and says what to look for.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from allranks.guard.buffers import Buffers
from allranks.guard.digests import (
    DTensor,
    as_bytes,
    canonical,
    layout,
    local,
    number,
    pieces,
    settle,
    shard,
    sums,
)
from allranks.guard.exchange import Exchange, GuardError, dealt, int64, names
from allranks.guard.targets import OUTSIDE, Targets
from allranks.guard.wrappers import units, wrapped

FREE = "buffer", "attribute"  # kinds whose values a rank may have for itself
OWN = "attribute", OUTSIDE  # kinds that may exist on one rank and not on another
STATE = "optimizer state"
Part = tuple[int, int]  # a rank's shard, and the digest of what it holds

WHY = {
    OUTSIDE: "The optimizer holds it, and the wrapped model does not, as with a "
    "criterion that has weights: nobody synchronizes its gradient. Wrap the criterion "
    "in DDP too; or broadcast its weights once and all_reduce its gradients in each "
    "step. If it is a rank's own part: "
    'ignore=("optimizer 0",).',
    "value": "It is not a value of all ranks: was it reduced to one rank, read before "
    "wait(), or reduced in a group without some?",
    "buffer's value": "Each rank may fill a buffer from its own samples, as BatchNorm "
    "does; then it differs until a broadcast, and that is no mistake by itself. If all "
    "ranks need one value: SyncBatchNorm, or all_reduce it before it is compared.",
    "parameter": "Replicas that start or step apart stay apart: were weights loaded or "
    "edited on one rank, changed after the wrap, or are they synchronized by nobody?",
    "buffer": "",
    "attribute": " It is neither a parameter nor a buffer, so nobody sends it from one "
    "rank to the others: register_buffer, or make it alike on all ranks.",
    "optimizer state": "Equal gradients from equal states give equal states: was it "
    "loaded on one rank, or did one rank skip a step?",
    "gradient": "After the exchange every rank must hold one gradient. Nobody "
    "synchronizes this one: was it added or unfrozen after the wrap, was the forward "
    "not through the wrapper (.module), the backward inside of no_sync or by "
    "autograd.grad, or clipped by a local norm?",
}
STAGES = (
    " Ranks that hold other parts of the model (pipeline stages) need their own group=."
)
ROOT = (
    "Other parameters are sharded and this one is whole: fully_shard was not called on "
    "what holds it, so nobody reduces it. Call fully_shard on the root too, last."
)
BY_HAND = (
    "Nothing in this model synchronizes gradients, so your loop must: each of them, on "
    "every rank, in the order of named_parameters() (a set has another in each "
    "process), with zeros where a rank has None. If DDP wraps it, give the guard that."
)
STARTED = (
    "Replicas that start apart stay apart: were they built from different seeds and "
    "sent by nobody, loaded or edited on one rank, or changed after the wrap?" + STAGES
)
MAX_NORM = (
    "Its max_norm= rescales, in each forward, the rows that a rank looks up, and every "
    "rank looks up others. Leave it out, or rescale all rows after optimizer.step()."
)
UNSENT = (
    "A rank without more batches does not step its optimizer, and Join sends the "
    "weights at the end, but not the optimizer's state. Broadcast it from a rank that "
    "stepped last, or give all ranks equally many batches."
)
FROZEN = (
    "It has no gradient, so nobody synchronizes it: forward or the loop writes to it "
    "from a rank's own samples (a moving average, a codebook), or one rank loaded it. "
    "all_reduce what it is made of."
)
WALKED = (
    "At the start it was equal. Likely, in this order: gradients changed or exchanged "
    "after watch.step(), a step that one rank skipped, an optimizer that draws random "
    "numbers of each rank's own, a forward that writes to weights, weights loaded or "
    "edited on one rank." + STAGES
)


def cause(model: nn.Module, where: str, kind: str, name: str) -> str:
    """Say what to look for if a tensor differs, as far as the model tells."""
    parameter = dict(model.named_parameters()).get(name)
    if parameter is None or kind not in ("gradient", "parameter"):
        return WHY[kind]
    if kind == "gradient":
        if isinstance(parameter, DTensor):
            return WHY[kind]
        if units(model):
            return ROOT
        return WHY[kind] if wrapped(model) else BY_HAND
    if where == "the start":
        return STARTED
    owner = model.get_submodule(name.rpartition(".")[0])
    if getattr(owner, "max_norm", None) is not None:
        return MAX_NORM
    return WALKED if parameter.requires_grad else FROZEN


class Copy(NamedTuple):
    """What a rank tells about a tensor that some ranks hold differently."""

    shard: int  # a number for its own; equal ones have to hold equal bits
    digest: int  # of the bits, with one NaN and one zero for all
    form: int  # a number for shard and shape
    written: int  # whether this rank wrote to it


class Replicas:
    """Compares tensors between ranks.

    The ranks exchange one digest for each kind. Only if these differ, a second exchange
    finds the tensor, and a third one the element. Sharded tensors are compared between
    ranks that hold the same shard, along the mesh axes on which they are replicated.
    """

    def __init__(self, exchange: Exchange, targets: Targets, buffers: Buffers) -> None:
        self.exchange, self.targets, self.buffers = exchange, targets, buffers
        self.model = targets.model
        self.joined_steps = ""  # how many steps ranks made inside of Join
        self.later = False  # whether the optimizer itself may exchange the gradients
        self.hint = ""  # where step() belongs, if it seems to be in the wrong place

    def numbers(
        self, tensors: dict[str, torch.Tensor]
    ) -> list[int | list[torch.Tensor]]:
        """Return numbers for the names of a kind, and for shard and bits by layout.

        The digests of the bits are still on their devices, for ``settle``.
        """
        text = "|".join(f"{k} {layout(v)}" for k, v in tensors.items())
        result: list[int | list[torch.Tensor]] = [number(text)]
        layouts: dict[str, list[torch.Tensor]] = {}
        for tensor in tensors.values():
            layouts.setdefault(layout(tensor), []).append(tensor)
        for kind, alike in sorted(layouts.items(), key=lambda item: item[0]):
            key = number(f"{kind} {[shard(t) for t in alike]}")
            # A shard that none of the other ranks holds needs no digest.
            alone = kind and "Replicate" not in kind and all(map(self._within, alike))
            result += [key, 0 if alone else sums([local(t) for t in alike])]
        return result

    def _within(self, tensor: torch.Tensor) -> bool:
        """Tell whether all ranks that take part are on the tensor's mesh."""
        mesh = tensor.device_mesh.mesh
        return set(self.exchange.ranks) <= set(mesh.flatten().tolist())

    def compare(
        self,
        where: str,
        kinds: dict[str, dict[str, torch.Tensor]],
        table: list[list[list[int]]],
    ) -> None:
        """Raise if a tensor is not the same on all ranks.

        Args:
            where: what this check is called.
            kinds: the tensors of each kind, by name.
            table: what ``numbers`` returned, by rank and kind.
        """
        for place, (kind, tensors) in enumerate(kinds.items()):
            rows = [row[place] for row in table]
            if len({tuple(row) for row in rows}) == 1:
                if kind in FREE:
                    self.buffers.equal(kind)
                continue
            if len({row[0] for row in rows}) > 1:
                self._presence(where, kind, tensors)
                continue
            # Behind the names' number, a row has pairs of shard and digest: one for
            # each layout. Ranks that hold other shards may hold other bits.
            digests: dict[int, set[int]] = {}
            for row in rows:
                for key, value in zip(row[1::2], row[2::2], strict=True):
                    digests.setdefault(key, set()).add(value)
            if any(len(values) > 1 for values in digests.values()):
                self._find(where, kind, tensors)

    def _presence(
        self, where: str, kind: str, tensors: dict[str, torch.Tensor]
    ) -> None:
        """Raise for a tensor that some ranks don't have, or lay out differently."""
        lines = [f"{name}\t{layout(t) or 'not sharded'}" for name, t in tensors.items()]
        have = [
            dict(line.split("\t") for line in text.split("\n") if line)
            for text in self.exchange.texts("\n".join(lines))
        ]
        # Some optimizers keep the state of a weight on one rank, which then sends the
        # weight to the others. Whether it does is seen in the weights.
        owned = kind == STATE and (self.targets.custom or dealt(have))
        for name in sorted(set().union(*have)):
            there = [own.get(name, "none") for own in have]
            if len(set(there)) == 1:
                continue
            if kind in OWN or owned:
                self.buffers.per_rank.add(name)
                continue
            blame = self.exchange.suspects(there)
            if "none" in there:
                ranks = list(zip(self.exchange.ranks, there, strict=True))
                with_it = names(r for r, how in ranks if how != "none")
                without = names(r for r, how in ranks if how == "none")
                one = f"{'an' if kind[0] in 'ao' else 'a'} {kind} {name}"
                said = f"there is {one} on {with_it} and none on {without}"
            else:
                said = f"the {kind} {name} lies in different ways: "
                said += self.exchange.by_ranks(there, "; ")
            raise GuardError(
                f"{where}: {said} ({blame}). {cause(self.model, where, kind, name)}"
            )
        if kind in OWN or owned:
            return
        raise GuardError(
            f"{where}: the ranks hold their {kind}s in different orders: build the "
            "model and the optimizer alike on all ranks."
        )

    def _find(self, where: str, kind: str, tensors: dict[str, torch.Tensor]) -> None:
        """Raise for the first tensor that differs, with its element and the ranks."""
        different = []
        for name, tensor, copies in self._copies(where, kind, tensors):
            num_shards = len({copy.shard for copy in copies})
            pairs: list[Part] = [(copy.shard, copy.digest) for copy in copies]
            free = (any if kind == "attribute" else all)(c.written for c in copies)
            if free or len({copy.form for copy in copies}) > num_shards:
                # This includes a buffer that grows with a rank's own batches.
                self.buffers.per_rank.add(name)
                if free and kind == "buffer" and len(set(pairs)) > num_shards:
                    self.buffers.warn_of_queue(where, name, tensor)
            elif len(set(pairs)) > num_shards:
                different.append((name, tensor, pairs))
        still = ""
        if kind in FREE:
            different, still = self.buffers.wrong(where, kind, different)
        if kind == STATE and self.targets.custom:
            self.buffers.per_rank |= {name for name, *_ in different}
            return
        if kind == "gradient" and self.targets.custom and not wrapped(self.model):
            self.later = True  # if not, the weights differ at the next check
            return
        if not different:
            return  # different NaNs, zeros of different sign, or buffers that change
        name, tensor, pairs = different[0]
        hint = self.hint if kind == "gradient" else ""
        why = hint or f"{still}{cause(self.model, where, kind, name)}"
        if kind == "parameter" and self.later:
            why = BY_HAND
        if kind == STATE and self.joined_steps:
            why = f"{self.joined_steps}{UNSENT}"
        more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
        raise GuardError(
            f"{where}: the {kind} {name}{more} is not the same on all ranks: "
            f"{self.element(where, tensor, pairs)} ({self.exchange.suspects(pairs)}). "
            f"{why}"
        )

    def _copies(
        self, where: str, kind: str, tensors: dict[str, torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor, list[Copy]]]:
        """Yield name, tensor, and what each rank tells about its copy."""
        own: list[int | list[torch.Tensor]] = []
        for name, tensor in tensors.items():
            part, key = local(tensor), shard(tensor)
            digest = sums([canonical(piece) for piece in pieces(part)])
            form = number(f"{key} {tuple(part.shape)}")
            written = kind in FREE and self.buffers.written(kind, name, tensor)
            own += [key, digest, form, int(written)]  # the fields of Copy
        rows = self.exchange.integers(f"{where}: which {kind}", settle([own])[0][0])
        count = len(Copy._fields)
        for place, (name, tensor) in enumerate(tensors.items()):
            at = slice(count * place, count * (place + 1))
            yield name, tensor, [Copy(*row[at]) for row in rows]

    def element(self, where: str, tensor: torch.Tensor, pairs: list[Part]) -> str:
        """Describe an element that differs, with each rank's value of it.

        Args:
            where: what this check is called.
            tensor: this rank's.
            pairs: shard and digest on each rank.
        """
        parts = pieces(local(tensor))
        if len(parts) != 1:  # it is quantized, or of a class of its own
            said = self.exchange.by_ranks([f"{d:x}" for _, d in pairs], " and ")
            return f"the digest of its bits is {said}"
        flat, shape = parts[0].flatten(), tuple(local(tensor).shape)
        # Of several shards, one whose copies differ; only its ranks are compared.
        differs = next(
            key for key, _ in pairs if len({d for k, d in pairs if k == key}) > 1
        )
        holders = [i for i, (key, _) in enumerate(pairs) if key == differs]
        # Which of up to 1024 blocks, and then which element of that: two small
        # messages, however large the tensor is.
        size = max(1, -(-flat.numel() // 1024))
        digests = settle([[sums([canonical(b)]) for b in flat.split(size)]])[0][0]
        table = self.exchange.integers(f"{where}: which block", digests)
        block = _first_unlike([table[i] for i in holders])
        own = as_bytes(flat[block * size : (block + 1) * size])
        bits = self.exchange.bytes(f"{where}: which element", own)
        values = [bits[i].view(flat.dtype).tolist() for i in holders]
        at = _first_unlike([list(map(repr, row)) for row in values])
        ranks_by_value: dict[str, list[int]] = {}
        for i, row in zip(holders, values, strict=True):
            ranks_by_value.setdefault(_say(row[at]), []).append(self.exchange.ranks[i])
        said = " and ".join(f"{v} on {names(who)}" for v, who in ranks_by_value.items())
        index = [int(i) for i in torch.unravel_index(int64(at + block * size), shape)]
        return f"element {index} is {said}" if shape else f"it is {said}"


def _first_unlike(rows: list[list[Any]]) -> int:
    """Return the first place at which rows differ.

    >>> _first_unlike([[1, 2, 3], [1, 5, 3]])
    1
    """
    columns = enumerate(zip(*rows, strict=True))
    return next(place for place, column in columns if len(set(column)) > 1)


def _say(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
