"""``check(ex5_1)``: try a reader's function on live ranks, and say what is wrong."""

import ast
import inspect
import tempfile
import textwrap
from collections.abc import Callable

from allranks.base.report import RanksError
from allranks.exercises import files, rank_side
from allranks.exercises.answers import Answer, are_together, explain
from allranks.exercises.files import Exercise
from allranks.exercises.rank_side import Place
from allranks.live import jobs
from allranks.live.ranks import Ranks
from allranks.live.server import warm_up

STALL_S = 1.0  # seconds without progress: then ranks wait for each other
LIMIT_S = 10.0  # seconds for one world size; those in a queue for a core don't count


def check(answer: Callable) -> Answer:
    """Try the function of an exercise, and print and return what was found.

    The function is sent by value to fresh live ranks, whose seeds differ. None of the
    ranks is left afterwards, whatever the function does.

    Args:
        answer: the reader's function, which has the name of its exercise.
    """
    found = _examine(answer)
    print(found.message)
    return found


def _examine(answer: Callable) -> Answer:
    """Try the function on each world size of its exercise."""
    if not inspect.isfunction(answer):
        kind = "nothing" if answer is None else f"a {type(answer).__name__}"
        text = f"check takes the function itself, as in check(ex1_1); this is {kind}."
        return Answer(False, "no exercise", text)
    try:
        exercise = files.find(answer.__name__)
    except ValueError as error:
        return Answer(False, "no exercise", f"check: {error}.")
    source = _source(answer)
    name = exercise.name
    if _is_stub(source):
        warm_up()  # loads torch while the reader thinks
        text = f"{name}: still the stub. Fill it in, run its cell, then this one."
        return Answer(False, "stub", text)
    try:
        _, packed = jobs.call(answer, args=(), kwargs={})
    except Exception as error:
        text = f"{name} uses something that cannot be sent to a rank: {error}"
        return Answer(False, "error", text)
    first = answer.__code__.co_firstlineno
    last = first + max(1, len(source.splitlines())) - 1
    place = Place(answer.__code__.co_filename, first, last)
    for world_size in exercise.world_sizes:
        found = _try(exercise, world_size, packed, place)
        if isinstance(found, Answer):
            return found
    sizes = [str(n) for n in exercise.world_sizes if n > 1]
    on = f" On {' and '.join(sizes)} ranks:" if sizes else ""
    text = textwrap.fill(f"{name}: right.{on or ' Tried:'} {', '.join(found)}.", 88)
    return Answer(True, "right", text, tuple(found))


def _try(
    exercise: Exercise, world_size: int, packed: bytes, place: Place
) -> list[str] | Answer:
    """Return the cases if all passed, or the answer that ends the check."""
    with (
        tempfile.TemporaryDirectory(prefix="allranks-") as folder,
        Ranks(world_size, timeout=LIMIT_S) as ranks,
    ):
        # Ranks that have all come to the same call are slow, as far as anybody can see.
        ranks.stall = STALL_S
        ranks.keep_waiting = lambda at: are_together(at, world_size)
        try:
            arguments = packed, exercise, place, folder
            return ranks.run(rank_side.play, *arguments, quiet=True)[0]
        except RanksError as error:
            return explain(exercise, world_size, error, ranks.outputs, place)


def _source(answer: Callable) -> str:
    """Return the source text of a function, or an empty text."""
    try:
        return textwrap.dedent(inspect.getsource(answer))
    except (OSError, TypeError, SyntaxError):
        return ""


def _is_stub(source: str) -> bool:
    """Tell whether the function has nothing but its docstring."""
    try:
        (function,) = ast.parse(source).body
    except (SyntaxError, ValueError):
        return False
    texts = [ast.unparse(s) for s in function.body if not _is_constant(s)]
    return texts in ([], ["pass"], ["raise NotImplementedError"])


def _is_constant(statement: ast.stmt) -> bool:
    """Tell whether a statement is a docstring or three dots."""
    return isinstance(getattr(statement, "value", None), ast.Constant) and isinstance(
        statement, ast.Expr
    )
