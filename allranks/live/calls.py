"""What a rank has called of ``torch.distributed`` lately, in a file that outlives it.

A rank that hangs or has died cannot be asked. So each call is noted in memory that the
rank shares with a file, and the parent reads that: whether calls still end, which is
progress, and whether all ranks have made the same calls with tensors of equal size.
Gloo checks neither size nor dtype: it sums what there is, waits, or aborts the process.
"""

import contextlib
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from allranks.base.report import group_ranks

KEPT = 256  # calls of each rank
WIDTH = 256  # bytes of each
_HEAD = struct.Struct("=QQ")  # how many calls have ended, and how many are noted
# Collectives that every rank of a group makes, and which of their arguments must have
# the same size and dtype on all of them: its place, and its names.
SIZED = {
    "all_reduce": (0, "tensor"),
    "broadcast": (0, "tensor"),
    "reduce": (0, "tensor"),
    "gather": (0, "tensor"),
    "scatter": (0, "tensor"),
    "all_gather": (1, "tensor"),
    "all_gather_into_tensor": (1, "input_tensor", "input"),
    "all_gather_single": (1, "input_tensor", "input"),
    "reduce_scatter_tensor": (0, "output", "output_tensor"),
    "reduce_scatter_single": (0, "output", "output_tensor"),
}
UNSIZED = ["barrier", "all_gather_object", "broadcast_object_list", "gather_object"]
UNSIZED += ["scatter_object_list", "all_to_all", "all_to_all_single", "reduce_scatter"]


class Call(NamedTuple):
    """One call of a collective.

    Attributes:
        group: the name of its process group.
        number: how many calls the rank had made in that group before.
        what: the function, with the size and dtype of its tensor; "" if it refused.
        line: the reader's line, 0 if unknown.
        file: the reader's file, or the name of the cell.
    """

    group: str
    number: int
    what: str
    line: int
    file: str


class Recorder:
    """Notes the calls of this rank.

    Args:
        path: of the file, which is made.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_HEAD.size + KEPT * WIDTH))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._counts = memoryview(self._map)[: _HEAD.size].cast("Q")
        self._numbers: dict[str, int] = {}  # of calls, by group

    def note(self, name: str, args: tuple, kwargs: dict, place: tuple) -> None:
        """Note a call that begins.

        Args:
            name: of the function, one of ``SIZED`` or ``UNSIZED``.
            args, kwargs: of the call.
            place: the reader's file and line.
        """
        group, what = _group_of(args, kwargs), name
        if name in SIZED:
            at, *names = SIZED[name]
            tensor = args[at] if len(args) > at else None
            for other in names:
                tensor = kwargs.get(other, tensor)
            # NCCL gathers tensors of unequal sizes, so GPUs' are not compared.
            if hasattr(tensor, "numel") and tensor.device.type == "cpu":
                what = f"{name} of {tensor.numel()} × {str(tensor.dtype)[6:]}"
        number = self._numbers[group] = self._numbers.get(group, -1) + 1
        text = f"{group}\t{number}\t{what}\t{place[1]}\t{place[0]}".encode()[:WIDTH]
        at = _HEAD.size + self._counts[1] % KEPT * WIDTH
        self._map[at : at + WIDTH] = text.ljust(WIDTH, b"\0")
        self._counts[1] += 1

    def take_back(self) -> None:
        """Forget what the last call was: it was refused before it met another."""
        at = _HEAD.size + (self._counts[1] - 1) % KEPT * WIDTH
        text = bytes(self._map[at : at + WIDTH]).split(b"\t")
        text = b"\t".join([*text[:2], b"", *text[3:]])
        self._map[at : at + WIDTH] = text.ljust(WIDTH, b"\0")[:WIDTH]

    def ended(self) -> None:
        """Note that a call has ended, which is progress."""
        self._counts[0] += 1


def _group_of(args: tuple, kwargs: dict) -> str:
    from torch.distributed import ProcessGroup, group

    for value in (*args, *kwargs.values()):
        if isinstance(value, ProcessGroup) and value is not group.WORLD:
            return value.group_name
    return ""  # the world's, named or not


def read_progress(path: Path) -> int:
    """Return how many calls of a rank have ended."""
    try:
        with open(path, "rb") as file:
            return _HEAD.unpack(file.read(_HEAD.size))[0]
    except (OSError, struct.error):  # the rank is only starting
        return 0


def read(path: Path) -> list[Call]:
    """Return the last calls of a rank, which may have died, in their order."""
    try:
        data = path.read_bytes()
        count = _HEAD.unpack_from(data)[1]
    except (OSError, struct.error):  # the rank is only starting
        return []
    calls = []
    for number in range(max(0, count - KEPT), count):
        at = _HEAD.size + number % KEPT * WIDTH
        text = data[at : at + WIDTH].rstrip(b"\0").decode("utf8", "replace")
        with contextlib.suppress(ValueError):  # it is being written
            group, place, what, line, file = text.split("\t")
            calls.append(Call(group, int(place), what, int(line), file))
    return calls


def difference(
    by_rank: dict[int, list[Call]],
    name_place: Callable[[str, int], str],
    over: bool = False,
) -> str | None:
    """Return a sentence on the first calls that should be equal and are not.

    Args:
        by_rank: the last calls of each rank.
        name_place: what names a file and a line.
        over: whether all ranks are done. Then a group is looked at only if its ranks
            have made equally many calls: those of C++ are not noted.

    >>> calls = {r: [Call("", 0, f"broadcast of {r} × int", 1, "")] for r in (3, 5)}
    >>> difference(calls, lambda file, line: f"line {line}")
    'rank 3 calls broadcast of 3 × int at line 1, rank 5 broadcast of 5 × int at line 1'
    """
    met: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, calls in by_rank.items():
        for call in filter(lambda call: call.what, calls):
            met.setdefault((call.group, call.number), {})[rank] = call
    ends: dict[str, set[int]] = {}  # how many calls the ranks of a group have made
    for calls in by_rank.values():
        for group, number in {call.group: call.number for call in calls}.items():
            ends.setdefault(group, set()).add(number)
    for (group, _), calls in met.items():
        if over and len(ends[group]) > 1:
            continue
        if len({call.what for call in calls.values()}) > 1:
            return _tell(calls, name_place)
    return None


def _tell(calls: dict[int, Call], name_place: Callable[[str, int], str]) -> str:
    """Say which rank made which call, and where."""
    whats = {rank: call.what for rank, call in calls.items()}
    parts = []
    for who, what in group_ranks(whats):
        first = next(call for call in calls.values() if call.what == what)
        verb = "call" if who.startswith("ranks") else "calls"
        verb = f" {verb}" if not parts else ""
        parts.append(f"{who}{verb} {what} at {name_place(first.file, first.line)}")
    return ", ".join(parts)
