"""Specimens: a small program that goes wrong as a page says, beside its repair.

A specimen is one Python file. Its docstring has a title, fields and prose; its code
stands in cells, ``# %% wrong`` and ``# %% right`` (for a claim in words: ``# %% claim``
and ``# %% fact``), after an optional ``# %% given`` that runs before each. A cell runs
on fresh live ranks, or, if its heading names a command, is saved as the file that the
command names last.
"""

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path

PAIRS = ("wrong", "right"), ("claim", "fact")
OUTCOMES = "raises", "warns", "hangs", "runs"
PLACES = re.compile(r"(one process|(\d+) ranks?|(\d+) virtual GPUs?)$")
RECORDS = "outcomes.json"
_CELL = re.compile(r"^# %% (\w+)(?:: (.+))?\n", re.MULTILINE)
_FIELD = re.compile(r"^([a-z ]+): (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Specimen:
    """One file: what the page says of it, and its cells.

    Attributes:
        key: its row, ``a1``, the beginning of the file's name.
        fields: ``runs on``, ``outcome``, ``chapter``, and any other.
        cells: the code of each cell by name, the failing one first.
        commands: the command of a cell, where its heading names one.
    """

    path: Path
    title: str
    fields: dict[str, str]
    prose: str
    given: str
    cells: dict[str, str]
    commands: dict[str, str]

    @property
    def key(self) -> str:
        """The row of the table that it belongs to."""
        return self.path.stem.partition("_")[0]

    def hangs(self, cell: str) -> bool:
        """Tell whether this cell is meant never to end."""
        return self.fields["outcome"] == "hangs" and cell in ("wrong", "claim")

    def invariant(self, cell: str) -> str:
        """Code that must hold after this cell: a row of the errata has none."""
        return ""


@dataclass(frozen=True)
class Outcome:
    """How a cell ended, one of ``OUTCOMES``, and what a reader sees of it."""

    status: str
    text: str


def split(path: Path) -> tuple[str, dict, str, dict, dict]:
    """Cut a file into title, fields, prose, cells, and what follows a cell's name."""
    text = Path(path).read_text("utf8")
    title, _, rest = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")
    head, _, prose = rest.partition("\n\n")
    _, *parts = _CELL.split(text)
    names, notes, codes = parts[::3], parts[1::3], [c.strip() for c in parts[2::3]]
    cells = dict(zip(names, codes, strict=True))
    notes = {name: note for name, note in zip(names, notes, strict=True) if note}
    return title, dict(_FIELD.findall(head)), prose, cells, notes


def read(path: Path) -> Specimen:
    """Parse a specimen's file.

    Raises:
        ValueError: if a part is missing or misspelt; the message says which.
    """
    title, fields, prose, cells, commands = split(path)
    given = cells.pop("given", "")
    place, outcome = fields.get("runs on", ""), fields.get("outcome")
    for fault, found in {
        "a title, fields and prose": not (title and fields and prose),
        f"cells {PAIRS}, found {tuple(cells)}": tuple(cells) not in PAIRS,
        f"runs on: {PLACES.pattern}, found {place!r}": not PLACES.match(place),
        f"outcome: one of {OUTCOMES}, found {outcome!r}": outcome not in OUTCOMES,
    }.items():
        if found:
            raise ValueError(f"{Path(path).name} needs {fault}")
    return Specimen(Path(path), title, fields, prose, given, cells, commands)


def folder(path: Path) -> list[Specimen]:
    """All specimens of a folder: a2 before a10, a before b."""
    found = [read(file) for file in Path(path).glob("[a-z]*_*.py")]
    return sorted(found, key=lambda s: (s.key[0], int(s.key[1:] or 0)))


def recorded(specimen: Specimen) -> dict[str, Outcome]:
    """What each cell did when it was last recorded.

    Raises:
        LookupError: if it was not.
    """
    path = specimen.path.with_name(RECORDS)
    entry = json.loads(path.read_text("utf8")).get(specimen.path.stem, {})
    if list(entry) != list(specimen.cells):
        raise LookupError(f"no outcome of {specimen.path.name}: make notebooks")
    return {name: Outcome(**outcome) for name, outcome in entry.items()}


def record(specimen: Specimen, outcomes: dict[str, Outcome]) -> None:
    """Write what each cell did; entries of files that are gone are dropped."""
    path = specimen.path.with_name(RECORDS)
    entries = json.loads(path.read_text("utf8")) if path.is_file() else {}
    entries[specimen.path.stem] = {n: vars(o) for n, o in outcomes.items()}
    names = [name for name in sorted(entries) if path.with_name(f"{name}.py").exists()]
    kept = {name: entries[name] for name in names}
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf8")
