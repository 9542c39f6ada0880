"""Invariant: ranks that should hold equal tensors and settings hold equal ones."""

import torch

from .digests import (
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
from .exchange import Exchange, GuardError, _int64, names
from .moving import Moving
from .why import OUTSIDE, WHY

FREE = "buffer", "attribute"  # kinds of which a rank may have its own
OWN = "attribute", OUTSIDE  # kinds of which a rank may have others


class Replicas:
    """Compares tensors and settings over the ranks.

    One digest for each kind goes round. Only if they differ, a second exchange finds
    the tensor, and a third the element. Sharded tensors are compared between ranks that
    hold the same shard: along the mesh axes on which they are replicated.
    """

    def __init__(self, exchange: Exchange):
        self.exchange = exchange
        self.moving = Moving(exchange)
        self.hint = ""  # where step() should be, if it seems to be elsewhere
        self.cause = lambda where, kind, name: WHY[kind]
        self.filled = lambda where, name, tensor: None  # see slots
        self.written = lambda kind, name, tensor: False  # see Attributes

    def layouts(self, tensors: dict[str, torch.Tensor]) -> dict[str, list]:
        """Sort tensors by how they lie on the ranks."""
        found: dict[str, list] = {}
        for tensor in tensors.values():
            found.setdefault(layout(tensor), []).append(tensor)
        return dict(sorted(found.items()))

    def within(self, tensor: torch.Tensor) -> bool:
        """Whether all ranks that compare are on the tensor's mesh."""
        return set(self.exchange.ranks) <= set(
            tensor.device_mesh.mesh.flatten().tolist()
        )

    def numbers(self, tensors: dict[str, torch.Tensor]) -> list:
        """What goes round of a kind: names, then part and digest of each layout.

        Digests are still on their devices, for ``settle``.
        """
        text = "|".join(f"{k} {layout(v)}" for k, v in tensors.items())
        result = [number(text)]
        for kind, alike in self.layouts(tensors).items():
            key = number(f"{kind} {[shard(t) for t in alike]}")
            # A shard that no other of these ranks holds needs no digest.
            alone = kind and "Replicate" not in kind and all(map(self.within, alike))
            result += [key, 0 if alone else sums([local(t) for t in alike])]
        return result

    def compare(self, where: str, kinds: dict[str, dict], table: list[list]) -> None:
        """Judge each kind's numbers (``numbers``) of every rank; raise what differs."""
        for place, (kind, tensors) in enumerate(kinds.items()):
            rows = [row[place] for row in table]
            if len({tuple(row) for row in rows}) == 1:
                if kind in FREE:
                    self.moving.equal(kind)
                continue
            if len({row[0] for row in rows}) > 1:
                self.presence(where, kind, tensors)
                continue
            by_part = [set(zip(row[1::2], row[2::2], strict=True)) for row in rows]
            parts: dict = {}
            for key, value in (pair for pairs in by_part for pair in pairs):
                parts.setdefault(key, set()).add(value)
            if any(len(values) > 1 for values in parts.values()):
                self.find(where, kind, tensors)

    def presence(self, where: str, kind: str, tensors: dict) -> None:
        """Say which tensor one rank has and another has not, or has otherwise."""
        lines = [f"{name}\t{layout(t) or 'not sharded'}" for name, t in tensors.items()]
        have = [
            dict(line.split("\t") for line in text.split("\n") if line)
            for text in self.exchange.texts("\n".join(lines))
        ]
        for name in sorted(set().union(*have)):
            there = [own.get(name, "none") for own in have]
            if len(set(there)) == 1:
                continue
            if kind in OWN:
                self.moving.free.add(name)
                continue
            blame = self.exchange.suspects(there)
            if "none" in there:
                ranks = list(zip(self.exchange.ranks, there, strict=True))
                with_it = names(r for r, how in ranks if how != "none")
                without = names(r for r, how in ranks if how == "none")
                one = f"{'an' if kind[0] in 'ao' else 'a'} {kind} {name}"
                said = f"there is {one} on {with_it} and none on {without}"
            else:
                groups = self.exchange.split(there).items()
                said = f"the {kind} {name} lies in different ways: " + "; ".join(
                    f"{how} on {names(ranks)}" for how, ranks in groups
                )
            raise GuardError(
                f"{where}: {said} ({blame}). {self.cause(where, kind, name)}"
            )
        if kind in OWN:
            return
        raise GuardError(
            f"{where}: the ranks hold their {kind}s in different orders: build the "
            "model and the optimizer alike on all ranks."
        )

    def find(self, where: str, kind: str, tensors: dict) -> None:
        """Name the first tensor that differs, its element and the ranks."""
        items = list(tensors.items())
        own = []
        for name, tensor in tensors.items():
            part, whole = local(tensor), shard(tensor)
            shape = number(f"{whole} {tuple(part.shape)}")
            free = kind in FREE and self.written(kind, name, tensor)
            own += [whole, sums([canonical(x) for x in pieces(part)]), shape, int(free)]
        own = settle([own])[0][0]
        table = self.exchange.integers(f"{where}: which {kind}", own)
        different = []
        for place, (name, tensor) in enumerate(items):
            rows = [row[4 * place : 4 * place + 4] for row in table]
            parts, pairs = {row[0] for row in rows}, [(row[0], row[1]) for row in rows]
            free = (any if kind == "attribute" else all)(row[3] for row in rows)
            if free or len({row[2] for row in rows}) > len(parts):
                # Also a buffer that grows with a rank's own batches.
                self.moving.free.add(name)
                if free and kind == "buffer" and len(set(pairs)) > len(parts):
                    self.filled(where, name, tensor)
            elif len(set(pairs)) > len(parts):
                different.append((name, tensor, pairs))
        still = ""
        if kind in FREE:
            different, still = self.moving.wrong(where, kind, different)
        if not different:
            return  # NaNs of another kind, zeros of another sign, or moving buffers
        name, tensor, pairs = different[0]
        hint = self.hint if kind == "gradient" else ""
        why = hint or f"{still}{self.cause(where, kind, name)}"
        more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
        raise GuardError(
            f"{where}: the {kind} {name}{more} is not the same on all ranks: "
            f"{self.element(where, tensor, pairs)} ({self.exchange.suspects(pairs)}). "
            f"{why}"
        )

    def element(self, where: str, tensor: torch.Tensor, pairs: list) -> str:
        """Say an element that differs, and each rank's value of it."""
        found = pieces(local(tensor))
        if len(found) != 1:  # quantised, or of a class of its own
            groups = self.exchange.split([f"{digest:x}" for _, digest in pairs])
            said = " and ".join(f"{d} on {names(r)}" for d, r in groups.items())
            return f"the digest of its bits is {said}"
        flat = found[0].flatten()
        part = pairs[0][0] if len({p for p, _ in pairs}) == 1 else None
        if part is None:  # of several shards, take one whose copies differ
            part = next(k for k, _ in pairs if len({v for p, v in pairs if p == k}) > 1)
        shape, size = tuple(local(tensor).shape), max(1, -(-flat.numel() // 1024))
        blocks = settle([[sums([canonical(b)]) for b in flat.split(size)]])[0][0]
        table = self.exchange.integers(f"{where}: which block", blocks)
        mine = [row for row, (key, _) in zip(table, pairs, strict=True) if key == part]
        block = next(
            i
            for i, column in enumerate(zip(*mine, strict=True))
            if len(set(column)) > 1
        )
        piece = flat[block * size : (block + 1) * size]
        bits = self.exchange.bytes(f"{where}: which element", as_bytes(piece))
        values = [row.view(flat.dtype).tolist() for row in bits]
        keep = [i for i, (key, _) in enumerate(pairs) if key == part]
        columns = list(zip(*(values[i] for i in keep), strict=True))
        at = next(i for i, c in enumerate(columns) if len({repr(v) for v in c}) > 1)
        ranks = [self.exchange.ranks[i] for i in keep]
        found: dict = {}
        for rank, value in zip(ranks, columns[at], strict=True):
            found.setdefault(_say(value), []).append(rank)
        said = " and ".join(f"{value} on {names(who)}" for value, who in found.items())
        index = [int(i) for i in torch.unravel_index(_int64(at + block * size), shape)]
        return f"element {index} is {said}" if shape else f"it is {said}"


def _say(value) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
