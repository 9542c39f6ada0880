"""What runs on each rank: the check, which calls the reader's function."""

import json
import os
import random
import traceback
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

T = TypeVar("T")

# What a check can use, from oracle.py, watch.py and patches.py.
ORACLE = "Wrong Untouched compare expect in_place integers unpack"
WATCH = "Work dice everyone gradient grads one_at_a_time undrawn"
PATCHES = "forbid only patch spy"
MARK = "\x1e"  # begins a line that names the case, between what the reader prints


class Verdict(Exception):
    """How the check ended on this rank, as JSON, since live ranks pass on the text."""


class Place(NamedTuple):
    """Where the reader's function is: its file, its first and its last line."""

    file: str
    first: int
    last: int


class Case:
    """The current case: ``case("tied weights")`` names it."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str) -> None:
        self.names.append(name)
        print(f"{MARK}{name}")

    def each(self, cases: Mapping[str, T]) -> Iterator[tuple[str, T]]:
        """Yield name and value of each case, which is the current one meanwhile."""
        for name, value in cases.items():
            self(name)
            yield name, value


def play(packed: bytes, name: str, source: str, place: Place, folder: str) -> list[str]:
    """Check the packed function, and return the names of the cases that it passed.

    Args:
        packed: the reader's function, pickled by value.
        name: of the exercise.
        source: the code of the exercise's check.
        place: where the reader's function is.
        folder: an empty one, where the check and the function may write.
    Raises:
        Verdict: if it does not pass.
    """
    import linecache
    import warnings

    import cloudpickle
    import torch
    import torch.distributed as dist

    from allranks.exercises import oracle, patches, watch

    warnings.simplefilter("ignore")
    os.chdir(folder)
    rank = dist.get_rank()
    torch.manual_seed(1000 + rank)  # no two ranks draw the same numbers
    random.seed(2000 + rank)
    filename = f"<frozen check of {name}>"  # by this name, is_user_code skips it
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    space = {"__name__": "__main__", "torch": torch, "dist": dist, "folder": folder}
    space |= {"rank": rank, "world_size": dist.get_world_size()}
    changes, case = patches.Patches(), Case()
    space |= {"nn": torch.nn, "F": torch.nn.functional}
    for owner, names in (oracle, ORACLE), (watch, WATCH), (changes, PATCHES):
        space |= {key: getattr(owner, key) for key in names.split()}
    patches.only_functions(changes.patch)
    answer = changes.follow(cloudpickle.loads(packed)[0])
    exec(compile(source, filename, "exec"), space)
    facts = {}
    try:
        space["check"](answer, case)
        return case.names
    except oracle.Wrong as error:
        facts = {"kind": "wrong", "text": str(error)}
    except BaseException as error:  # even SystemExit
        facts = _describe(error, name, place)
    facts["case"] = case.names[-1] if case.names else ""
    raise Verdict(json.dumps(facts)) from None


def _describe(error: BaseException, name: str, place: Place) -> dict[str, str | int]:
    """Say where in the reader's code an exception came from."""
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if frame.filename == place.file]
    text = "".join(traceback.format_exception_only(error)).strip()
    if not frames:
        return {"kind": "unusable", "text": text}
    frame = frames[-1]
    where = f"`{frame.name}`, line {frame.lineno} of that cell"
    if place.first <= frame.lineno <= place.last:
        where = f"line {frame.lineno - place.first + 1} of your {name}"
    stub = isinstance(error, NotImplementedError) and not error.args
    kind = "stub" if stub else "error"
    return {"kind": kind, "text": text, "where": where, "line": frame.lineno}
