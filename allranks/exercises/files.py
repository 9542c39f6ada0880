'''The files of the exercises: one for each, such as ``exercises/ex5_1.py``.

The docstring has a title, fields, the task in Markdown, and three hints::

    """Average the gradients.

    Ranks: 2, 4        # the world sizes of the check; 1: work in one process
    Minutes: 10
    Level: hard        # only the last one of a chapter

    What is given, and what must hold after the call.

    Hint 1: a question that points at the right thing
    Hint 2: the idea
    Hint 3: the call, or the line, almost
    """

The code is in cells: ``# %% solution``, ``# %% check``, and for each mistake that the
check names ``# %% mistake: what it is``. What a reader is given is made of the
solution, if no cell ``# %% stub`` comes first. ``torch``, ``dist``, ``nn``, ``F`` and
the modules of the standard library need no import: a reader gets those that the
solution names.

A mistake has its sentence, in lines after ``>``, and says how it differs from the
solution; so may a stub differ from what is made of the solution::

    # %% mistake: the sum, not the mean
    # > This is the sum: divide it by the world size.
    # - total /= world_size
    # %% mistake: the rank's own; … is whatever stands there
    # > This is the rank's own.
    # ~ dist.all_reduce(… => pass
    # %% mistake: divides too early
    # > It divides by the world size twice.
    #   dist.all_reduce(total)
    # + total /= world_size
    # %% mistake: the mean of its own numbers
    # > This is the mean over the rank's numbers.
    # = return x.mean()

A line after ``-`` goes, one after ``+`` comes, and ``~`` replaces a part of a line. One
after none of these stays, and says where. Each is looked for after the one before,
whatever its indentation. Lines after ``=`` are the whole body of the solution.

The check defines ``check(answer, case)``, which runs on every rank, with seeds that
differ between ranks. ``answer`` is the reader's function, and ``case("tied weights")``
names what is tried from here on, for the messages. ``solution`` is the right function;
``reference(got, outcome, …)`` gives what ``outcome(solution, …)`` is, and that of each
mistake. The check can use ``torch``, ``dist``, ``nn``, ``F``, ``rank``,
``world_size``, ``folder`` (an empty one, the same on all ranks, and the current one),
and what :mod:`allranks.exercises.rank_side` lists.
'''

import ast
import linecache
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allranks.base.paths import ROOT

FOLDER = ROOT / "exercises"
KINDS = "stub", "solution", "check", "mistake"
GIVEN = {
    "torch": "import torch",
    "dist": "import torch.distributed as dist",
    "nn": "from torch import nn",
    "F": "from torch.nn import functional as F",
}
_CELL = re.compile(r"^# %% (\w+)(?:: (.+))?\n", re.MULTILINE)
_SENTENCE = re.compile(r"^# > (.+)\n", re.MULTILINE)
_EDIT = re.compile(r"# ([-+~= ]) (.*)")
_HINT = re.compile(r"^Hint (\d): ", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """One cell: its kind, such as ``mistake``, the note in its heading, and its code.

    A mistake has a sentence, too.
    """

    kind: str
    note: str
    code: str
    sentence: str = ""


@dataclass(frozen=True)
class Exercise:
    """One file, parsed.

    Attributes:
        world_sizes: those that the check tries.
        minutes: that it takes a reader, about.
        hard: whether it is the hard one of its chapter.
        task: in Markdown.
    """

    path: Path
    title: str
    world_sizes: tuple[int, ...]
    minutes: int
    hard: bool
    task: str
    hints: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """Return the name of the exercise and of its function, such as ``ex5_1``."""
        return self.path.stem

    @property
    def chapter(self) -> int:
        """Return the number of its chapter."""
        return int(self.number.partition(".")[0])

    @property
    def number(self) -> str:
        """Return the number as its heading writes it, such as ``5.1``."""
        return self.name.removeprefix("ex").replace("_", ".")

    def code(self, kind: str) -> str:
        """Return the code of the first cell of a kind."""
        return next(cell.code for cell in self.cells if cell.kind == kind)


def load(code: str, filename: str, **names: Any) -> dict[str, Any]:
    """Run code in a namespace with some names, and return it; errors show its lines."""
    linecache.cache[filename] = (len(code), None, code.splitlines(True), filename)
    namespace = {"__name__": "__main__", **names}
    exec(compile(code, filename, "exec"), namespace)
    return namespace


def names() -> list[str]:
    """List the names of all exercises, in the order of the book."""
    stems = [path.stem for path in FOLDER.glob("ex*_*.py")]
    return sorted(stems, key=lambda stem: [int(n) for n in re.findall(r"\d+", stem)])


def find(name: str) -> Exercise:
    """Read the exercise with a name.

    Raises:
        ValueError: if there is none; the message names the first and the last.
    """
    known = names()
    if name in known:
        return read(FOLDER / f"{name}.py")
    if not known:
        raise ValueError(
            f"no exercises in {FOLDER.name}/: run this in a copy of the book"
        )
    raise ValueError(f"there is no exercise {name!r}: {known[0]} to {known[-1]} exist")


def read(path: Path) -> Exercise:
    """Parse an exercise's file.

    Raises:
        ValueError: if a part is missing or misspelt; the message names it.
    """
    text = Path(path).read_text("utf8")
    title, _, rest = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")
    head, _, prose = rest.partition("\n\n")
    fields = dict(re.findall(r"^(\w+): ([^#\n]+?) *(?:#.*)?$", head, re.MULTILINE))
    task, *hints = _HINT.split(prose)
    cells = cells_of(text)
    # A stub is written by hand only if the solution's imports would give it away.
    if [cell.kind for cell in cells[:1]] == ["solution"]:
        cells.insert(0, Cell("stub", "", _stub(cells[0].code)))
    kinds = [cell.kind for cell in cells]
    numbers = [int(n) for n in re.findall(r"\d+", fields.get("Ranks", ""))]
    strange = [kind for kind in kinds if kind not in KINDS]
    defines = rf"^def {Path(path).stem}\("
    for fault, found in {
        "a title of one line, fields, a task": (
            not title or "\n" in title or not task.strip()
        ),
        "Ranks, Minutes": not {"Ranks", "Minutes"} <= set(fields),
        "Level: hard, or none": fields.get("Level", "hard") != "hard",
        "world sizes in Ranks": not numbers,
        "Hint 1, Hint 2, Hint 3": hints[::2] != ["1", "2", "3"],
        f"kinds of cells: {', '.join(KINDS)}": strange,
        "one stub, solution and check, then its mistakes": (
            kinds[:3] != ["stub", "solution", "check"] or {*kinds[3:]} - {"mistake"}
        ),
        "a note, a sentence (>) and changes in each mistake": any(
            not (cell.note and cell.sentence and is_change(cell)) for cell in cells[3:]
        ),
        f"def {Path(path).stem} in stub and solution": any(
            not re.search(defines, cell.code, re.MULTILINE)
            for cell in cells[:2]
            if not is_change(cell)
        ),
    }.items():
        if found:
            raise ValueError(f"{Path(path).name} needs {fault}")
    stub, solution, check, *mistakes = cells
    try:
        if is_change(stub):
            stub = changed(stub, _stub(solution.code))
        mistakes = [changed(mistake, solution.code) for mistake in mistakes]
    except ValueError as error:
        raise ValueError(f"{Path(path).name} needs {error}") from None
    return Exercise(
        path=Path(path),
        title=title.rstrip("."),
        world_sizes=tuple(numbers),
        minutes=int(fields["Minutes"]),
        hard="Level" in fields,
        task=task.strip(),
        hints=tuple(" ".join(hint.split()) for hint in hints[1::2]),
        cells=(stub, solution, check, *mistakes),
    )


def cells_of(text: str) -> list[Cell]:
    """Return a file's cells; those that are no changes import what they name."""
    # split keeps what it captured, so parts is kind, note, code, kind, note, code, ...
    _, *parts = _CELL.split(text)
    cells = []
    for kind, note, code in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        sentence = " ".join(_SENTENCE.findall(code))
        cell = Cell(kind, note or "", _SENTENCE.sub("", code).strip(), sentence)
        if not is_change(cell):
            cell = replace(cell, code=_imported(cell.code))
        cells.append(cell)
    return cells


def is_change(cell: Cell) -> bool:
    """Tell whether a cell says how it differs from other code."""
    return bool(_EDIT.match(cell.code))


def changed(cell: Cell, *bases: str) -> Cell:
    """Return a cell with the code that its changes make of another.

    Args:
        bases: the solution, or any right answers; the first that fits is taken.
    Raises:
        ValueError: if none has the lines to keep and to change, or if what comes out
            is no Python.
    """
    edits = [_EDIT.fullmatch(line) for line in cell.code.splitlines()]
    if None in edits:
        raise ValueError(f"a sign in each line of: {cell.note}")
    for base in bases:
        if (code := _edit(base, [edit.groups() for edit in edits])) is None:
            continue
        try:
            return replace(cell, code=_imported(code))
        except SyntaxError as error:
            at = f"line {error.lineno}, {error.text.strip()!r}"
            raise ValueError(f"Python in {at}, for: {cell.note}") from None
    raise ValueError(f"right answers with the lines to change, for: {cell.note}")


def _stub(solution: str) -> str:
    """Return what a reader is given: the imports, the signature and the docstring."""
    function = ast.parse(solution).body[-1]
    head = solution.splitlines()[function.lineno - 1 : function.body[0].end_lineno]
    lines = [*imports(solution), "", "", *head, "    raise NotImplementedError"]
    return "\n".join(lines).strip()


def _imported(code: str) -> str:
    """Return a cell with the imports of what is given and what it names."""
    own, unbound = imports(code), _unbound(code)
    modules = sorted(unbound & sys.stdlib_module_names)
    given = [line for name, line in GIVEN.items() if name in unbound]
    groups = [f"import {name}" for name in modules], own, given
    head = "\n\n".join("\n".join(lines) for lines in groups if lines)
    body = "\n".join(code.splitlines()[len(own) :]).strip()
    return f"{head}\n\n\n{body}".strip()


def _unbound(code: str) -> set[str]:
    """Return the names that a cell reads and binds nowhere, such as ``torch``."""
    read, bound = set(), set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.alias(name=name, asname=None):
                bound.add(name.partition(".")[0])
            case ast.alias(asname=name):
                bound.add(name)
    return read - bound


def imports(code: str) -> list[str]:
    """Return the lines of the imports."""
    tree = ast.parse(code).body
    found = [node for node in tree if isinstance(node, (ast.Import, ast.ImportFrom))]
    return code.splitlines()[: found[-1].end_lineno] if found else []


def _edit(base: str, edits: list[tuple[str, str]]) -> str | None:
    """Return a right answer with changes, each a sign and a line; None if one fails."""
    old, new = base.splitlines(), []
    shift = 0  # how much further in the answer is than the list
    for sign, line in edits:
        if sign == "=" and old:  # the first line of another body
            docstring = ast.parse(base).body[-1].body[0]
            new += old[: docstring.end_lineno]
            old, shift = [], 4
        if sign in "+=":
            new.append(" " * shift + line)
            continue
        was, _, now = line.partition(" =>")
        part = re.compile(re.escape(was).replace("…", ".*"))
        fits = (
            at  # in what comes after the edit before
            for at, found in enumerate(old)
            if (part.search(found) if sign == "~" else found.strip() == line.strip())
        )
        if (at := next(fits, None)) is None:
            return None
        found = old[at]
        shift = _indent(found) - _indent(line)
        new += old[:at]
        if sign == " ":
            new.append(found)
        elif sign == "~":
            start, end = part.search(found).span()
            new.append(found[:start] + now[1:] + found[end:])
        del old[: at + 1]
    return "\n".join([*new, *old])


def _indent(line: str) -> int:
    """Return how many spaces a line begins with."""
    return len(line) - len(line.lstrip())
