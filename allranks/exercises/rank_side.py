"""What runs on each rank: the check, which calls the reader's function."""

import contextlib
import json
import os
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from allranks.exercises.files import Exercise, load

T = TypeVar("T")

# What a check can use, from oracle.py, watch.py and patches.py.
ORACLE = "Wrong Untouched compare expect in_place integers unpack"
WATCH = "Buckets dice everyone gradient grads one_at_a_time trainable undivided undrawn"
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


class Known:
    """The solution of an exercise, and the mistakes that its check names."""

    def __init__(self, exercise: Exercise) -> None:
        functions = {}
        for cell in exercise.cells:
            if cell.kind in ("solution", "mistake"):
                # is_user_code skips files of this name, as it skips the check's.
                filename = f"<frozen check of {exercise.name}: {cell.note}>"
                functions[cell.sentence] = load(cell.code, filename)[exercise.name]
        self.solution = functions.pop("")
        self._mistakes = functions

    def reference(
        self, got: T, outcome: Callable[..., T], *args: Any
    ) -> tuple[T, dict[str, T]]:
        """Return ``outcome(solution, *args)``, and that of each mistake, by sentence.

        All ranks have to call this, since the functions may contain collectives. The
        mistakes are not tried if all ranks got what is right, and one that fails here
        is left out.

        Args:
            got: what the outcome of the reader's function was.
            outcome: runs a function on what a case gives, and returns what matters.
        """
        from allranks.exercises.oracle import differs
        from allranks.exercises.watch import everyone

        want, found = outcome(self.solution, *args), {}
        if any(everyone(differs(got, want))):
            for sentence, function in self._mistakes.items():
                with contextlib.suppress(Exception):
                    found[sentence] = outcome(function, *args)
        return want, found


def play(packed: bytes, exercise: Exercise, place: Place, folder: str) -> list[str]:
    """Check the packed function, and return the names of the cases that it passed.

    Args:
        packed: the reader's function, pickled by value.
        exercise: the one whose check is run.
        place: where the reader's function is.
        folder: an empty one, where the check and the function may write.
    Raises:
        Verdict: if it does not pass.
    """
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
    space = {"torch": torch, "dist": dist, "folder": folder}
    space |= {"rank": rank, "world_size": dist.get_world_size()}
    changes, case = patches.Patches(), Case()
    known = Known(exercise)
    space |= {"solution": known.solution, "reference": known.reference}
    space |= {"nn": torch.nn, "F": torch.nn.functional}
    for owner, names in (oracle, ORACLE), (watch, WATCH), (changes, PATCHES):
        space |= {key: getattr(owner, key) for key in names.split()}
    patches.only_functions(changes.patch)
    answer = changes.follow(cloudpickle.loads(packed)[0])
    filename = f"<frozen check of {exercise.name}>"  # is_user_code skips it
    check = load(exercise.code("check"), filename, **space)["check"]
    facts = {}
    try:
        check(answer, case)
        return case.names
    except oracle.Wrong as error:
        facts = {"kind": "wrong", "text": str(error)}
    except BaseException as error:  # even SystemExit
        facts = _describe(error, exercise.name, place)
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
