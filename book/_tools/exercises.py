"""Write the exercises of a chapter into its notebook, from ``exercises/``.

    python book/_tools/exercises.py notebooks/ch5_ddp.ipynb
    python book/_tools/execute.py notebooks/ch5_ddp.ipynb

They follow the notebook's own cells, and replace any that an earlier call wrote.
"""

import re
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode, v4

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # for allranks and book._tools

from allranks.exercises import files  # noqa: E402
from allranks.exercises.files import Exercise  # noqa: E402
from book._tools import notebooks  # noqa: E402

INTRO = """## Exercises

Fill in a stub, run its cell, and run the cell below it: `check` tries your function \
on live ranks, hard cases included, and says what is wrong. Can't run the cells? Read \
the task, write the lines on paper, and unfold the hints one by one."""


def chapter(number: int) -> list[Exercise]:
    """Return the exercises of a chapter, in order."""
    names = files.names()
    return [files.find(name) for name in names if name.startswith(f"ex{number}_")]


def cells(exercise: Exercise) -> list[NotebookNode]:
    """Return an exercise's cells in the notebook: task, stub, check and hints."""
    name = exercise.name
    time = f"{exercise.minutes} minutes"
    time = f"*Hard: {time}.*" if exercise.hard else f"*{time}.*"
    head = f"### Exercise {exercise.number} - {exercise.title}"
    return [
        v4.new_markdown_cell(f"{head}\n\n{time}\n\n{exercise.task}", id=f"{name}-task"),
        v4.new_code_cell(exercise.code("stub"), id=f"{name}-stub"),
        v4.new_code_cell(f"check({name})", id=f"{name}-check"),
        v4.new_code_cell(f'hints("{name}")', id=f"{name}-hints"),
    ]


def section(number: int) -> list[NotebookNode]:
    """Return all cells about a chapter's exercises."""
    loads = v4.new_code_cell("from allranks import check, hints", id="exercises-import")
    found = [v4.new_markdown_cell(INTRO, id="exercises"), loads]
    for exercise in chapter(number):
        found += cells(exercise)
    return found


def own(notebook: NotebookNode) -> list[NotebookNode]:
    """Return those cells of a notebook that come from ``exercises/``."""
    return [c for c in notebook.cells if re.match(r"exercises|ex\d+_\d+-", c.id)]


def main(paths: list[str]) -> None:
    """Bring the exercises of each notebook up to date."""
    for path in map(Path, paths):
        number = int(path.stem.partition("_")[0].removeprefix("ch"))
        notebook = nbformat.read(path, as_version=4)
        old = own(notebook)
        notebook.cells = [cell for cell in notebook.cells if cell not in old]
        notebook.cells += section(number)
        path.write_text(notebooks.canonical(notebook), "utf8")


if __name__ == "__main__":
    main(sys.argv[1:])
