"""``{outside} CLONE FILE``: how strangers' tests ended with our classes.

It is read from book/_data/outside.json, which ``make outside`` writes. A sentence names
the commit and the day. A table has a row for each test: how it ended with the classes
of this book, and with those of PyTorch. FILE takes the tests of one file.
"""

import json
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from book._ext.runs.status import Status

DATA = "book/_data/outside.json"
ENDS = "passed", "failed", "not offered"


def ours(subject: str) -> bool:
    """Tell whether a class is one of this book.

    >>> ours("ch8_flat.DDP"), ours("torch.optim.Muon")
    (True, False)
    """
    return not subject.startswith("torch.")


def told(ends: dict[str, str]) -> str:
    """Say which classes ended in which way.

    >>> told({"a.A": "passed: gap 3e-15", "b.B": "passed: gap 3e-15"})
    'passed, off by 3e-15: a.A, b.B'
    >>> told({"a.A": "failed: AssertionError: Max diff: 9e-09", "torch.b.B": "passed"})
    'failed, off by 9e-09: a.A; passed: B'
    >>> told({"a.A": "passed: gap 0e+00"})
    'passed, in equal bits: a.A'
    >>> told({})
    '–'
    """
    groups: dict[str, list[str]] = {}
    for subject, end in ends.items():
        gap = re.search(r"(?:gap|Max diff:) ([\d.e+-]+)", end)
        end, _, why = end.partition(": ")
        if gap:
            off = float(gap[1])
            end += f", off by {off:.0e}" if off else ", in equal bits"
        elif why:
            end += f" ({why})"
        name = subject if ours(subject) else subject.rpartition(".")[2]
        groups.setdefault(end, []).append(name)
    return "; ".join(f"{end}: {', '.join(who)}" for end, who in groups.items()) or "–"


def rows(record: dict, clone: str, file: str = "") -> list[list[str]]:
    """Return the cells of a clone's tests: the test, with our classes, with PyTorch's.

    file: take the tests of this file only.

    Raises:
        LookupError: if the record has none.
    """
    found = []
    for row in record["rows"]:
        name = row["file"].removeprefix("tests/")
        if row["clone"] == clone and file in ("", name):
            test = row["test"] if file else f"{name}: {row['test']}"
            test += f" ({row['edited']})" if row["edited"] else ""
            mine = {s: end for s, end in row["ends"].items() if ours(s)}
            torchs = {s: end for s, end in row["ends"].items() if not ours(s)}
            found.append([test, told(mine), told(torchs)])
    if not found:
        raise LookupError(f"{DATA} has no tests of {clone} {file}")
    return found


class Outside(Status):
    """The sentence and the table of one clone."""

    required_arguments = 1
    optional_arguments = 1
    heads = ("test", "with the classes of this book", "with PyTorch's")
    widths = (40, 34, 26)

    def run(self) -> list[nodes.Node]:
        """Build both from the file as it is now."""
        self.env.note_dependency(DATA)
        clone = self.arguments[0]
        try:
            record = json.loads(Path(self.env.srcdir, DATA).read_text("utf8"))
            found, about = rows(record, *self.arguments), record["clones"][clone]
        except (LookupError, OSError, ValueError) as error:
            raise self.error(f"{DATA}: {error!r}; make outside writes it") from None
        repository, commit = about["repository"], about["commit"]
        uri = f"https://github.com/{repository}/tree/{commit}"
        text = nodes.paragraph("", f"Run on {record['day']} with PyTorch ")
        text += nodes.Text(f"{record['torch']}, on the CPU, on commit ")
        text += nodes.reference("", commit[:10], refuri=uri)
        text += nodes.Text(f" of {repository}, of {about['day']}.")
        table = self.table(found)
        table["classes"] = ["outside-table"]
        return [text, table]

    def row(self, texts: list[str]) -> nodes.row:
        """Build one row."""
        cells = (nodes.paragraph("", text) for text in texts)
        return nodes.row("", *(nodes.entry("", cell) for cell in cells))


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_directive("outside", Outside)
