"""Read the answers of ``tests/exercises/``, which the checks must take or refuse.

Each exercise has such a file, with cells: ``# %% right: why it passes`` (at least one)
and ``# %% wrong: the mistake`` (at least three, with the mistakes in the exercise's own
file, which are tried as well). An answer has all imports of the solution, and its own.
It is a function, or says how it differs from an earlier right one, such as the
solution, in the signs that :mod:`allranks.exercises.files` describes.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

from allranks.base.paths import ROOT
from allranks.exercises.files import (
    Cell,
    Exercise,
    cells_of,
    changed,
    imports,
    is_change,
    load,
)

FOLDER = ROOT / "tests" / "exercises"
_count = itertools.count(1)  # numbers the answers, so that each has its file name


def read(exercise: Exercise) -> list[Cell]:
    """Return all answers to an exercise, the solution first, each as a whole."""
    _, solution, _, *mistakes = exercise.cells
    head, answers = "\n".join(imports(solution.code)), [solution]
    for cell in cells_of((FOLDER / exercise.path.name).read_text("utf8")):
        assert cell.kind in ("right", "wrong") and cell.note, cell
        if is_change(cell):
            right = (answer.code for answer in answers if answer.kind != "wrong")
            answers.append(changed(cell, *right))
        else:
            code = f"{head}\n\n\n{cell.code}".strip()
            answers.append(replace(cell, code=code))
    return [*answers, *mistakes]


def function(name: str, code: str) -> Callable:
    """Run the code of a reader's cell, and return the function that it defines."""
    return load(code, f"<{name}, answer {next(_count)}>")[name]
