"""A specimen: a small program that goes wrong as a page says, beside its repair.

It is one Python file. Its docstring has a title, fields and prose; its code stands in
cells, such as ``# %% broken`` and ``# %% fixed``, after an optional ``# %% given`` that
runs before each. A cell runs on fresh live ranks, or, if its heading names a command,
is saved as the file that the command names last. ``cases`` reads those of ``clinic/``,
``errata`` those of ``errata/``: the form is one, what must not be missing differs.
"""

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

PLACES = re.compile(r"(one process|(\d+) ranks?|(\d+) virtual GPUs?)$")
QUOTED = "quoted"  # where a specimen ran that nobody can run here
_CELL = re.compile(r"^# %% (\w+)(?:: (.+))?\n", re.MULTILINE)
_FIELD = re.compile(r"^([a-z ]+): (.+)$", re.MULTILINE)
_LINK = re.compile(r"(https://[^\s()]+)(?:\s\(([^)]+)\))?")


@dataclass(frozen=True)
class Specimen:
    """One file: what the page says of it, and its cells.

    Attributes:
        fields: ``runs on``, ``chapter``, and what else its kind demands.
        prose: the docstring below the fields; ``parts`` are its paragraphs by the
            word that each begins with, for a case of the clinic.
        cells: the code of each cell that is played, by name, the failing one first.
        commands: the command of a cell, where its heading names one.
        endless: whether the failing cell is meant never to end.
        law: what the invariant demands, in words; ``check`` is its code.
        quoted: the message, of a case that needs GPUs and was never run here.
        signs: (kind, regular expression) for the lines of a log.
    """

    path: Path
    title: str
    fields: dict[str, str]
    prose: str
    given: str
    cells: dict[str, str]
    commands: dict[str, str]
    endless: bool
    parts: dict[str, str] = field(default_factory=dict)
    law: str = ""
    check: str = ""
    quoted: str = ""
    signs: tuple[tuple[str, str], ...] = ()

    @property
    def slug(self) -> str:
        """Its name: the file's."""
        return self.path.stem

    @property
    def row(self) -> str:
        """The row of the errata's table, ``a1``: the beginning of the file's name."""
        return self.slug.partition("_")[0]

    @property
    def runs(self) -> bool:
        """False for a case that is quoted from machines with GPUs."""
        return self.fields["runs on"] != QUOTED

    @property
    def links(self) -> list[tuple[str, str]]:
        """(address, what is reported there) of each thread."""
        return _LINK.findall(self.parts.get("Links", ""))

    def hangs(self, cell: str) -> bool:
        """Tell whether this cell is meant never to end."""
        return self.endless and cell == next(iter(self.cells))

    def invariant(self, cell: str) -> str:
        """Return the code that must hold after this cell; the guard has its own say."""
        return "" if cell == "guarded" else self.check


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
