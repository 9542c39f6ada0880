"""A specimen: a small program that goes wrong as a page says, and its repair.

It is one Python file. Its docstring has a title, fields and prose. Its code is in cells
such as ``# %% broken`` and ``# %% fixed``; an optional ``# %% given`` runs before each
of them. A cell runs on fresh live ranks; if its heading names a command, it is saved as
the file that the command runs. ``cases`` reads the specimens of ``clinic/``, and
``errata`` those of ``errata/``, which have the same form but other required parts.
"""

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

PLACES = re.compile(r"(one process|(\d+) ranks?|(\d+) virtual GPUs?)$")
QUOTED = "quoted"  # the place of a specimen that cannot run here
_CELL = re.compile(r"^# %% (\w+)(?:: (.+))?\n", re.MULTILINE)
_FIELD = re.compile(r"^([a-z ]+): (.+)$", re.MULTILINE)
_LINK = re.compile(r"(https://[^\s()]+)(?:\s\(([^)]+)\))?")


@dataclass(frozen=True)
class Specimen:
    """One file: what the page says about it, and its cells.

    Attributes:
        fields: ``runs on``, ``chapter``, and what else its kind requires. ``elsewhere``
            is what a CUDA build says instead where there is no GPU: words or words.
        prose: the docstring below the fields.
        given: the code that runs before each cell.
        cells: the code of each cell that is played, by name, the failing one first.
        commands: the command of each cell whose heading names one.
        endless: whether the failing cell is meant never to end.
        parts: for a case of the clinic, the paragraphs of ``prose`` by the words that
            they begin with.
        law: what the invariant requires, in words.
        check: the code of the invariant.
        quoted: the message of a case that needs GPUs and was never run here.
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
        """Return its name, which is that of its file."""
        return self.path.stem

    @property
    def row(self) -> str:
        """Return its row in the errata's table, such as ``a1``."""
        return self.slug.partition("_")[0]

    @property
    def runs(self) -> bool:
        """Tell whether it is played, and not quoted from a machine with GPUs."""
        return self.fields["runs on"] != QUOTED

    @property
    def links(self) -> list[tuple[str, str]]:
        """Return (address, what is reported there) for each thread that it names."""
        return _LINK.findall(self.parts.get("Links", ""))

    def hangs(self, cell: str) -> bool:
        """Tell whether this cell is meant never to end."""
        return self.endless and cell == next(iter(self.cells))

    def invariant(self, cell: str) -> str:
        """Return the code to run after this cell; the guard has checks of its own."""
        return "" if cell == "guarded" else self.check


def split(path: Path) -> tuple[str, dict, str, dict, dict]:
    """Split a file into title, fields, prose, cells, and notes after cells' names."""
    text = Path(path).read_text("utf8")
    title, _, rest = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")
    head, _, prose = rest.partition("\n\n")
    _, *parts = _CELL.split(text)
    names, notes, codes = parts[::3], parts[1::3], [c.strip() for c in parts[2::3]]
    cells = dict(zip(names, codes, strict=True))
    notes = {name: note for name, note in zip(names, notes, strict=True) if note}
    return title, dict(_FIELD.findall(head)), prose, cells, notes
