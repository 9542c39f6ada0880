"""Whether ranks are in step: all have joined the same collectives, all sends are met.

If they are, no rank can still wait for another one. On each rank ``issued`` counts what
the rank has issued; the parent, which has not imported torch, asks ``find_desync``.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from allranks.base.report import group_ranks, name_ranks


class Group(NamedTuple):
    """What a rank has done in one process group.

    Attributes:
        ranks: the group's global ranks, sorted.
        collectives: how many the rank has joined; None if its backend does not count.
    """

    ranks: tuple[int, ...]
    collectives: int | None


@dataclass(frozen=True)
class Issued:
    """What one rank has issued since its groups exist.

    Attributes:
        rank: the global rank.
        group_count: process groups that it has made or seen others make.
        groups: those that it is in, by name.
        sends: messages by (name of the group, global rank of the receiver, tag).
        receives: messages by (name of the group, global rank of the sender, tag). The
            sender is None for those that take a message from any rank.
        failed: the calls that raised after they may have joined others.
    """

    rank: int
    group_count: int
    groups: dict[str, Group] = field(default_factory=dict)
    sends: dict[tuple[str, int, int], int] = field(default_factory=dict)
    receives: dict[tuple[str, int | None, int], int] = field(default_factory=dict)
    failed: tuple[str, ...] = ()


EARLY = "No backend type associated with device type"  # how torch refuses a device
_posts: MutableMapping = weakref.WeakKeyDictionary()  # counts of each process group
_failed: dict[str, None] = {}  # names of calls, in order


def issued() -> Issued:
    """Count what this rank has issued in each of its process groups."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _world

    groups, sends, receives = {}, {}, {}
    for group, name in list(_world.pg_names.items()):
        to_global = {mine: rank for rank, mine in _world.pg_group_ranks[group].items()}
        posts = _posts.get(group, {})
        count = None
        with contextlib.suppress(RuntimeError):  # of a backend that does not count
            count = group._get_sequence_number_for_group()
            if dist.get_backend(group) == "gloo":  # it counts messages as well
                count -= sum(posts.values())
        groups[str(name)] = Group(tuple(sorted(to_global.values())), count)
        for (kind, peer, tag), number in posts.items():
            key = (str(name), to_global.get(peer), tag)
            if kind == "send":
                sends[key] = number
            elif kind != "inner":
                receives[key] = number
    rank = dist.get_rank() if dist.is_initialized() else 0
    failed = tuple(_failed)
    return Issued(rank, _world.group_count, groups, sends, receives, failed)


def count_posts(fn: Callable, kind: str) -> Callable:
    """Return a group's ``send``, ``recv`` or ``recv_anysource`` with a counter."""

    @functools.wraps(fn)
    def post(group: Any, *args: Any, **kwargs: Any) -> Any:
        work = fn(group, *args, **kwargs)
        numbers = [*args[1:], *kwargs.values()]  # (peer, tag), or (tag,)
        peer = None if kind == "recv_anysource" else numbers[0]
        counts = _posts.setdefault(group, {})
        key = kind, peer, numbers[-1]
        counts[key] = counts.get(key, 0) + 1
        return work

    return post


def count_inner(fn: Callable) -> Callable:
    """Return a collective made of messages, each of which its group counts as one."""

    @functools.wraps(fn)
    def inner(group: Any, *args: Any, **kwargs: Any) -> Any:
        before = group._get_sequence_number_for_group()
        result = fn(group, *args, **kwargs)
        more = group._get_sequence_number_for_group() - before - 1
        counts = _posts.setdefault(group, {})
        key = "inner", None, 0
        counts[key] = counts.get(key, 0) + more
        return result

    return inner


def failed(name: str, error: Exception) -> bool:
    """Note that a call raised, unless no rank can wait for this one because of it.

    That is so if torch has found the fault before it joined, or if all ranks raise.

    Returns:
        Whether others may wait.
    """
    early = not isinstance(error, RuntimeError)
    early |= isinstance(error, NotImplementedError) or str(error).startswith(EARLY)
    halfway = not early and not getattr(error, "in_step", False)
    if halfway:
        _failed[name] = None
    return halfway


def find_desync(ranks: Iterable[Issued], messages: bool = True) -> str | None:
    """Return None if no rank can still wait for another, else one sentence on why not.

    Args:
        ranks: what each rank has issued. Messages to or from others are not looked at.
        messages: whether messages count as well, calls that failed, and collectives
            that nobody can count. After a cell that ended well they do not: a message
            may be received in the next cell.

    >>> joined = [2, 3, 3]
    >>> find_desync(Issued(r, 1, {"0": Group((0, 1, 2), joined[r])}) for r in range(3))
    'rank 0 has joined 2 collectives, ranks 1–2 have joined 3'
    """
    by_rank = {issued.rank: issued for issued in ranks}
    for rank, issued in by_rank.items() if messages else ():
        if issued.failed:
            return f"{issued.failed[0]} failed on rank {rank}, perhaps halfway"
    # Torch names a group after this count, so ranks that disagree in it give the next
    # group different names, and wait for each other for ever.
    counts = {rank: issued.group_count for rank, issued in by_rank.items()}
    if len(set(counts.values())) > 1:
        return _compare(counts, lambda n: f"made {_number(n, 'process group')}")
    names = {name: None for issued in by_rank.values() for name in issued.groups}
    for name in names:
        # Only members count a group's collectives; the others have nothing to join.
        holders = {r: i.groups[name] for r, i in by_rank.items() if name in i.groups}
        counts = {rank: group.collectives for rank, group in holders.items()}
        where = _where(next(iter(holders.values())), by_rank)
        if None in counts.values() and not messages:
            continue
        if None in counts.values():
            silent = [rank for rank, count in counts.items() if count is None]
            return f"{where}nothing counts the collectives of {name_ranks(silent)}"
        if len(set(counts.values())) > 1:
            said = _compare(counts, lambda n: f"joined {_number(n, 'collective')}")
            return f"{where}{said}"
        for receiver in holders if messages else ():
            said = _unmet(name, receiver, [r for r in holders], by_rank)
            if said:
                return f"{where}{said}"
    return None


def _unmet(
    name: str, receiver: int, members: list[int], by_rank: dict[int, Issued]
) -> str | None:
    """Return a sentence if a group's messages to a rank are not those it receives."""
    receives = by_rank[receiver].receives
    tags = {key[2] for key in receives if key[0] == name}
    for sender in members:
        tags |= {k[2] for k in by_rank[sender].sends if k[:2] == (name, receiver)}
    for tag in sorted(tags):
        with_tag = f" with tag {tag}" if tag else ""
        from_any = receives.get((name, None, tag), 0)
        left = 0  # messages for those receives that take them from any rank
        for sender in members:
            sent = by_rank[sender].sends.get((name, receiver, tag), 0)
            received = receives.get((name, sender, tag), 0)
            left += sent - received
            if sent < received or (sent > received and not from_any):
                return (
                    f"rank {sender} has sent {_number(sent, 'message')} to rank "
                    f"{receiver}{with_tag}, which receives {received} from it"
                )
        if left != from_any:
            sent = left + sum(receives.get((name, r, tag), 0) for r in members)
            received = sent - left + from_any
            return (
                f"{_number(sent, 'message')} went to rank {receiver}{with_tag}, "
                f"which receives {received}"
            )
    return None


def _where(group: Group, by_rank: dict[int, Issued]) -> str:
    """Return the words that name a group, unless it is the one of all ranks."""
    if set(group.ranks) >= set(by_rank):
        return ""
    return f"in the group of {name_ranks(list(group.ranks))}, "


def _compare(counts: dict[int, int], say: Callable[[int], str]) -> str:
    """Join who has which count: "rank 0 has joined 3 …, ranks 1–3 have joined 2"."""
    nouns = (" collectives", " collective", " process groups", " process group")
    parts = []
    for who, text in group_ranks({rank: say(n) for rank, n in counts.items()}):
        verb = "have" if who.startswith("ranks") else "has"
        if parts:
            for noun in nouns:
                text = text.removesuffix(noun)
        parts.append(f"{who} {verb} {text}")
    return ", ".join(parts)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
