"""``{outside} CLONE FILE``: how strangers' tests ended with our classes.

It is read from book/_data/outside.json, which ``make outside`` writes. The table has a
row for each test: how it ended with the classes of this book, and with those of
PyTorch. FILE takes the tests of one file. For an installed package, the table has a row
for each option that was tried: what came out. The role
{outside-count}`CLONE FILE passed` shows how many tests ended in this way with the
classes of this book; FILE may be left out, and ``all`` counts every test.
``{outside-runs}`` says when the tests ran, and on which commits.
{outside-installed}`PACKAGE gap` says by how much the tests with an installed package
were off, and ``version``, ``torch`` or ``day`` with what and when they ran.
"""

import json
import re
from collections import Counter
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective, SphinxRole

from book._ext.runs.status import Status

DATA = "book/_data/outside.json"
ENDS = "passed", "skipped", "failed"  # the worst comes last
SAID = {"not offered": "skipped"}  # words of the record that a reader need not know


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
    'passed, bit for bit: a.A'
    >>> told({"a.A": "not offered: no such option"})
    'skipped (no such option): a.A'
    >>> told({})
    '–'
    """
    groups: dict[str, list[str]] = {}
    for subject, end in ends.items():
        gap = re.search(r"(?:gap|Max diff:) ([\d.e+-]+)", end)
        end, _, why = end.partition(": ")
        end = SAID.get(end, end)
        if gap:
            off = float(gap[1])
            end += f", off by {off:.0e}" if off else ", bit for bit"
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


def options(record: dict, package: str) -> list[list[str]]:
    """Return the cells of a package's options: their names, and what came out.

    >>> row = {"clone": "a", "test": "test_on__off", "ends": {"x": "passed: ran: cut"}}
    >>> options({"rows": [row, {**row, "ends": {"x": "failed: 3"}}]}, "a")
    [['on, off', 'ran: cut'], ['on, off', 'failed: 3']]
    """
    return [
        [
            row["test"].removeprefix("test_").replace("__", ", "),
            end.removeprefix("passed: "),
        ]
        for row in record["rows"]
        for end in row["ends"].values()
        if row["clone"] == package
    ]


def counts(record: dict, clone: str, file: str = "") -> Counter[str]:
    """Count a clone's tests by how they ended with the classes of this book.

    A test that fails with one of the classes has failed. A test that also ran in an
    edited form counts once, as its authors wrote it.

    >>> row = {"clone": "a", "file": "tests/b.py", "test": "c", "edited": ""}
    >>> ends = {"x.X": "passed", "y.Y": "failed: off", "torch.z.Z": "passed"}
    >>> edited = {**row, "ends": {"x.X": "passed"}}
    >>> counts({"rows": [{**row, "ends": ends}, edited]}, "a")
    Counter({'failed': 1, 'all': 1})
    """
    found: dict[tuple[str, str], str] = {}
    for row in record["rows"]:
        name = row["file"].removeprefix("tests/")
        if row["clone"] == clone and file in ("", name):
            ends = [e.partition(": ")[0] for s, e in row["ends"].items() if ours(s)]
            worst = max((SAID.get(e, e) for e in ends), key=ENDS.index)
            found.setdefault((name, row["test"]), worst)
    return Counter([*found.values(), *("all" for _ in found)])


def gap(record: dict, clone: str) -> str:
    """Return the largest gap of tests that all passed, in words.

    >>> row = {"clone": "a", "ends": {"x.X": "passed: gap 3e-08"}}
    >>> equal = {"clone": "a", "ends": {"x.X": "passed: gap 0e+00"}}
    >>> gap({"rows": [row, equal]}, "a"), gap({"rows": [equal]}, "a")
    ('off by at most 3e-08', 'equal bit for bit')
    >>> gap({"rows": [{**row, "ends": {"x.X": "failed: gap 3e-08"}}]}, "a")
    Traceback (most recent call last):
    LookupError: not all tests of a have passed
    """
    rows = (row for row in record["rows"] if row["clone"] == clone)
    ends = [end for row in rows for end in row["ends"].values()]
    if not ends or not all(end.startswith("passed: gap ") for end in ends):
        raise LookupError(f"not all tests of {clone} have passed")
    off = max(float(end.rpartition(" ")[2]) for end in ends)
    return f"off by at most {off:.0e}" if off else "equal bit for bit"


def groups(record: dict, text: str) -> dict[str, Counter[str]]:
    """Count the tests of several groups: ``name = CLONE FILE && …``.

    Raises:
        LookupError: if a group has no tests.
    """
    found = {}
    for part in text.split(" && "):
        name, _, tests = part.partition(" = ")
        found[name] = counts(record, *tests.split())
        if not found[name]:
            raise LookupError(f"{DATA} has no tests of {tests}")
    return found


def load(env: BuildEnvironment) -> dict:
    """Read the record, and have the page rebuilt when it changes."""
    env.note_dependency(DATA)
    return json.loads(Path(env.srcdir, DATA).read_text("utf8"))


class OutsideCount(SphinxRole):
    """The number of a clone's tests that ended in one way."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Count, and put the number into the sentence."""
        clone, *file, end = self.text.split()
        found = counts(load(self.env), clone, *file)
        if not found or end not in ("all", *ENDS):
            error = self.inliner.reporter.error(
                f"{DATA}: no tests for {self.text}", line=self.lineno
            )
            return [self.inliner.problematic(self.rawtext, self.rawtext, error)], [
                error
            ]
        return [nodes.inline("", f"{found[end]}", classes=["outside-count"])], []


class OutsideInstalled(SphinxRole):
    """With which version of a package its tests ran, or how far off they were."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Look it up, and put it into the sentence."""
        record = load(self.env)
        package, key = self.text.split()
        try:
            about = record["installed"][package]
            found = gap(record, package) if key == "gap" else about[key]
        except LookupError as error:
            said = self.inliner.reporter.error(f"{DATA}: {error}", line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, said)], [said]
        return [nodes.inline("", found, classes=["outside-count"])], []


class OutsideRuns(SphinxDirective):
    """When the tests ran, with which PyTorch, and on which commits."""

    def run(self) -> list[nodes.Node]:
        """Build a sentence, and a list of the clones."""
        record = load(self.env)
        text = f"All tests ran on {record['day']}, on the CPU, with PyTorch "
        text += f"{record['torch']}, on these commits:"
        clones = nodes.bullet_list()
        for about in record["clones"].values():
            repository, commit = about["repository"], about["commit"]
            uri = f"https://github.com/{repository}/tree/{commit}"
            line = nodes.paragraph("", f"{repository}: ")
            line += nodes.reference("", commit[:10], refuri=uri)
            line += nodes.Text(f", from {about['day']}")
            clones += nodes.list_item("", line)
        return [nodes.paragraph("", text), clones]


class Outside(Status):
    """The table of one clone."""

    required_arguments = 1
    optional_arguments = 1
    heads = ("test", "with the classes of this book", "with PyTorch's")
    widths = (40, 34, 26)

    def run(self) -> list[nodes.Node]:
        """Build the table from the file as it is now."""
        try:
            record, clone = load(self.env), self.arguments[0]
            if clone in record["installed"]:
                self.heads, self.widths = ("option", "what came out"), (35, 65)
                found = options(record, clone)
            else:
                found = rows(record, *self.arguments)
        except (LookupError, OSError, ValueError) as error:
            raise self.error(f"{DATA}: {error!r}; make outside writes it") from None
        table = self.table(found)
        table["classes"] = ["outside-table"]
        return [table]

    def row(self, texts: list[str]) -> nodes.row:
        """Build one row."""
        cells = (nodes.paragraph("", text) for text in texts)
        return nodes.row("", *(nodes.entry("", cell) for cell in cells))


def setup(app: Sphinx) -> None:
    """Add the directives and the role."""
    app.add_directive("outside", Outside)
    app.add_directive("outside-runs", OutsideRuns)
    app.add_role("outside-count", OutsideCount())
    app.add_role("outside-installed", OutsideInstalled())
