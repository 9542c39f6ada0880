"""The guard's messages between ranks: small, matched, with one verdict everywhere.

``W`` is the number of ranks in the group. Each rank gets what all of them sent, and
judges it by the same rule, so all raise the same sentence or none does.
"""

import datetime
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from allranks.guard.digests import as_bytes, number

FIXED = 64  # numbers in the first message, however many a rank has to send
HEAD = 2  # of which are the place and the count
PLAIN = (torch.Tensor, int, float, str, bytes, type(None))  # leaves of a batch
JOINING = "preflight, joining the ranks' batches"
START = "the start"  # what the first check is called
# Kinds of errors that a program may take differently.
APART = "apart"  # ranks do not come to the guard together
SAME_NUMBERS = "same-random-numbers"  # which may be meant


class GuardError(RuntimeError):
    """Raised when something is silently wrong, on every rank with the same sentence.

    Attributes:
        kind: ``APART``, ``SAME_NUMBERS``, or "" for most errors.
        ratio: of all gradients to the mean that they should be; 0 if there is none.
    """

    def __init__(self, text: str, kind: str = "", ratio: float = 0.0) -> None:
        super().__init__(text)
        self.kind, self.ratio = kind, ratio


def names(ranks: Iterable[int]) -> str:
    """Name ranks as "rank 1" or "ranks 0, 2"."""
    ranks = list(ranks)
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def int64(values: int | list[int] | list[list[int]]) -> torch.Tensor:
    """Return numbers as a tensor on the CPU, whatever torch's default device is."""
    return torch.tensor(values, dtype=torch.int64, device="cpu")


class Exchange:
    """Sends each rank's message to all ranks of a group.

    Messages go through a gloo group of their own, so they never pair with the job's
    collectives, and a rank that does not come causes an error instead of a hang. Where
    gloo is not built in, the job's own backend carries them. A subclass that carries
    them otherwise overrides ``connect``, ``all_gather``, ``all_reduce`` and ``close``.

    Args:
        group: the ranks that hold one model; None means all ranks.
        device: the model's, which is used if the backend cannot send from the CPU.
        patience_s: seconds to wait for a rank that does not come.

    Raises:
        ValueError: on a rank that is not in the group.
        GuardError: if the ranks don't build it together.
    """

    def __init__(
        self,
        group: "dist.ProcessGroup | None",
        device: torch.device,
        patience_s: float,
    ) -> None:
        self.patience_s, self.group, self.device = patience_s, None, device
        # ``rank`` is a place in ``ranks``, which has the global ones of the group.
        self.rank, self.size, self.ranks, self.whole = 0, 1, [0], group is None
        self.remarks: list[str] = []  # what it has warned of
        if not (dist.is_available() and dist.is_initialized()):
            return
        if dist.get_rank(group) < 0:
            raise ValueError(
                f"rank {dist.get_rank()} is not in the group: build the Guard on the "
                "group's ranks only, with the group that each is in"
            )
        self.ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.size, self.rank = len(self.ranks), dist.get_rank(group)
        if self.size == 1:
            return
        try:
            self.connect(datetime.timedelta(seconds=patience_s))
        except RuntimeError as error:
            raise GuardError(
                f"the start: no group could be made (patience: {patience_s:g} s). Each "
                f"of {names(self.ranks)} must build its Guard, in the same order.",
                APART,
            ) from error

    def connect(self, timeout: datetime.timedelta) -> None:
        """Make the group that carries the messages."""
        gloo = dist.is_gloo_available()
        self.group = dist.new_group(
            None if self.whole else self.ranks,
            timeout=timeout,
            backend="gloo" if gloo else None,
            # The ranks outside do not call this, so they must not be waited for.
            use_local_synchronization=not self.whole,
        )
        if gloo:
            self.device = torch.device("cpu")

    def all_gather(self, everything: list[torch.Tensor], own: torch.Tensor) -> None:
        """Fill a list with the tensors of all ranks."""
        dist.all_gather(everything, own, group=self.group)

    def all_reduce(self, values: torch.Tensor) -> None:
        """Replace a tensor by the sum over all ranks."""
        dist.all_reduce(values, group=self.group)

    def close(self) -> None:
        """Release the process group."""
        # torch names a group of some of the ranks by those ranks. If it were destroyed
        # here, the next such group would find the old addresses in the store, so it is
        # left for destroy_process_group() to end.
        if self.whole and self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)
        self.group, self.size, self.ranks = None, 1, [self.ranks[self.rank]]
        self.rank = 0

    def _late(self, where: str) -> GuardError:
        return GuardError(
            f"{where}: one of {names(self.ranks)} did not come within "
            f"{self.patience_s:g} s. Either it has ended, or the ranks make steps and "
            "call the guard unequally often, as when each draws which model it trains.",
            APART,
        )

    def _gather(self, tensor: torch.Tensor, where: str) -> torch.Tensor:
        """Return every rank's tensor, ``(W, *shape)`` on the CPU."""
        if self.group is None:
            return tensor[None].cpu()
        tensor = tensor.to(self.device)
        received = [torch.empty_like(tensor) for _ in self.ranks]
        try:
            self.all_gather(received, tensor)
        except RuntimeError as error:
            raise self._late(where) from error
        return torch.stack(received).cpu()

    def integers(self, where: str, values: list[int]) -> list[list[int]]:
        """Return every rank's numbers, by rank; refuse ranks at different places.

        Args:
            where: the place this rank is at, such as "step 8".
            values: this rank's numbers; ranks may have different counts of them.

        Raises:
            GuardError: if the ranks are at different places, or one does not come.
        """
        room = FIXED - HEAD
        first = [number(where), len(values), *values[:room]]
        first += [0] * (FIXED - len(first))
        table = self._gather(int64(first), where)  # (W, FIXED)
        places, counts = table[:, 0].tolist(), table[:, 1].tolist()
        if len(set(places)) > 1:
            # The next exchange still pairs: every rank has just seen that it is due.
            said = ", ".join(
                f"rank {rank} at {place}"
                for rank, place in zip(self.ranks, self.texts(where), strict=True)
            )
            raise GuardError(f"the ranks are not at the same place: {said}", APART)
        # Gathered tensors have one shape. Nobody knows the others' counts before, so
        # the first message has a fixed size, and a second one is as long as it has to.
        rows = table[:, HEAD:]
        if max(counts) > room:
            rest = values[room:]
            rest += [0] * (max(counts) - room - len(rest))
            more = self._gather(int64(rest), where)  # (W, the longest rest)
            rows = torch.cat([rows, more], dim=1)
        return [row[:n] for row, n in zip(rows.tolist(), counts, strict=True)]

    def parts(self, where: str, parts: list[list[int]]) -> list[list[list[int]]]:
        """Return every rank's lists of numbers, by rank; they travel in one message."""
        own = [x for part in parts for x in (len(part), *part)]
        return [_cut(row) for row in self.integers(where, own)]

    def floats(self, where: str, values: torch.Tensor) -> torch.Tensor:
        """Return every rank's values in float32, ``(W, *shape)``; one shape for all."""
        return self._gather(values.detach().float(), where)

    def mean(self, where: str, values: torch.Tensor) -> torch.Tensor:
        """Return the mean over the ranks, on the CPU, by one all_reduce."""
        values = values.detach().float().to(self.device, copy=True)
        if self.group is not None:
            try:
                self.all_reduce(values)
            except RuntimeError as error:
                raise self._late(where) from error
        return values.cpu() / self.size

    def bytes(self, where: str, data: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's bytes (uint8), each with its own length."""
        # Sizes first: what is gathered has one shape, so all ranks pad to the longest.
        sizes = [row[0] for row in self.integers(where, [data.numel()])]
        padded = torch.zeros(max(sizes), dtype=torch.uint8, device=data.device)
        padded[: data.numel()] = data
        table = self._gather(padded, where)  # (W, the largest size)
        return [row[:size] for row, size in zip(table, sizes, strict=True)]

    def texts(self, text: str) -> list[str]:
        """Return every rank's text; it is only used once something is wrong."""
        data = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        parts = self.bytes("an exchange of texts", data)
        return [bytes(part.tolist()).decode().strip() for part in parts]

    def first_of(self, bad: list[bool], text: str) -> tuple[str, str]:
        """Return the names of the bad ranks, and the text of the first one.

        Args:
            bad: for each rank, whether it is one of them.
            text: what this rank says.
        """
        said = zip(bad, self.texts(text), strict=True)
        who = [rank for rank, yes in zip(self.ranks, bad, strict=True) if yes]
        return names(who), next(words for yes, words in said if yes)

    def agree(self, where: str, error: Exception | None) -> None:
        """Raise on every rank if any rank has an error.

        Args:
            where: what this place is called.
            error: this rank's own; None if all went well here.
        """
        failed = [row[0] == 1 for row in self.integers(where, [int(error is not None)])]
        if any(failed):
            text = f"{type(error).__name__}: {error}" if error else ""
            who, first = self.first_of(failed, text)
            raise GuardError(f"{where}: {who} failed: {first}") from error

    def split(self, values: Sequence[Hashable]) -> dict[Hashable, list[int]]:
        """Group the ranks by their values; the value of the majority comes first."""
        groups: dict[Hashable, list[int]] = {}
        for rank, value in zip(self.ranks, values, strict=True):
            groups.setdefault(value, []).append(rank)
        return dict(sorted(groups.items(), key=lambda item: -len(item[1])))

    def by_ranks(self, values: Sequence[Hashable], between: str = ", ") -> str:
        """Say which ranks have which value, such as "3 on rank 0, 4 on rank 1"."""
        groups = self.split(values).items()
        return between.join(f"{value} on {names(ranks)}" for value, ranks in groups)

    def suspects(self, values: Sequence[Hashable]) -> str:
        """Say which ranks are in the minority, or that there is no majority."""
        groups = list(self.split(values).values())
        if len(groups) > 1 and len(groups[0]) > len(groups[1]):
            odd = sorted(rank for group in groups[1:] for rank in group)
            return f"{names(odd)} {'is' if len(odd) == 1 else 'are'} in the minority"
        return "no majority, so any of them may be wrong"

    def warn(self, sentence: str) -> None:
        """Warn about something once, on the first rank only."""
        if sentence in self.remarks:
            return
        self.remarks.append(sentence)
        if self.rank == 0:
            warnings.warn(f"guard: {sentence}", stacklevel=5)


def dealt(own: Sequence[Iterable[Hashable]]) -> bool:
    """Tell whether ranks have dealt things out, each to one owner or its copies.

    So does ZeRO, or a Muon of which each rank moves some matrices. If only one rank has
    things of its own, nobody has dealt: the others lack them.

    Args:
        own: what each rank has.
    """
    sets = [set(things) for things in own]
    common = set.intersection(*sets)
    parts = {frozenset(things - common) for things in sets} - {frozenset()}
    # Copies of an owner have the same part. Different parts do not overlap if their
    # sizes add up to that of their union.
    return len(parts) > 1 and sum(map(len, parts)) == len(frozenset().union(*parts))


def _cut(row: list[int]) -> list[list[int]]:
    """Cut a row into its parts, each of which begins with its length.

    >>> _cut([2, 7, 8, 0, 1, 9])
    [[7, 8], [], [9]]
    """
    parts, at = [], 0
    while at < len(row):
        parts.append(row[at + 1 : at + 1 + row[at]])
        at += 1 + row[at]
    return parts


def union(exchange: Exchange, batches: list[Any], where: str = JOINING) -> Any:
    """Join the batches of all ranks, on every rank, with tensors along dim 0."""
    own = error = None
    try:
        own = _columns(batches)
    except (TypeError, ValueError, RuntimeError) as failed:
        error = failed
    exchange.agree(where, error)
    return _joined(exchange, own, where)


def _columns(batches: list[Any]) -> Any:
    """Join this rank's batches into one that is nested as each of them is."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {key: _columns([batch[key] for batch in batches]) for key in first}
    if isinstance(first, list | tuple):
        columns = map(list, zip(*batches, strict=True))
        return _like(first, map(_columns, columns))
    if torch.is_tensor(first):
        return torch.cat(batches) if first.dim() else first
    if not isinstance(first, PLAIN):
        raise TypeError(
            f"a batch holds a {type(first).__name__}; tensors in dicts, lists and "
            "tuples can be joined. Give those, and build it from them in the function"
        )
    return first


def _joined(exchange: Exchange, own: Any, where: str) -> Any:
    """Join a nested batch over the ranks, tensor by tensor, in the same order."""
    if isinstance(own, dict):
        return {key: _joined(exchange, value, where) for key, value in own.items()}
    if isinstance(own, list | tuple):
        return _like(own, [_joined(exchange, value, where) for value in own])
    if not torch.is_tensor(own) or not own.dim():
        return own
    rows = exchange.integers(where, [number(str(own.dtype)), *own.shape])
    shapes = [row[1:] for row in rows]
    # Bytes have neither dtype nor shape, so both must be known, and fit, before.
    if len({row[0] for row in rows}) > 1:
        dtypes = exchange.by_ranks(exchange.texts(str(own.dtype)))
        raise GuardError(
            f"{where}: the ranks' tensors are {dtypes}. Cast them to one dtype, also "
            "on a rank that has no samples."
        )
    if len({tuple(shape[1:]) for shape in shapes}) > 1:
        raise GuardError(
            f"{where}: the ranks' batches have the shapes {shapes}, by rank. Pad or "
            "cut them to one shape."
        )
    parts = exchange.bytes(where, as_bytes(own.detach()))
    whole = [
        part.clone().view(own.dtype).view(shape)
        for part, shape in zip(parts, shapes, strict=True)
    ]
    return torch.cat(whole).to(own.device)


def _like(first: list | tuple, items: Iterable) -> list | tuple:
    return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
