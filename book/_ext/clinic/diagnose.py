"""``{diagnose}``: a box that finds the clinic's cases in a pasted log.

The page loads three scripts: the signs of all cases, which each build makes from
``clinic/``; the search, the same as in ``python -m allranks.diagnose``; and the form.
It needs no server and sends nothing. What the answer says about a case (its cause, its
cure, and what the cure changes) is in one more script for each class, which the form
loads when it has found a case of that class. If it finds none, it loads described.js
and its table, because the text may describe a symptom. Without JavaScript, and on
paper, a sentence names the other ways to search.

``{diagnose-figures}`` says how often the diagnosis is right, for each set of logs;
``{diagnose-figures} sentence`` says it in plain words. The
counts come from book/_data/diagnose.json, which ``tests/clinic/measure.py --record``
writes; their shares and intervals are computed here, at each build. If there are logs
that were never used for tuning, a sentence about them comes first.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from allranks import clinic
from allranks.diagnose import described
from allranks.diagnose.answers import flat
from allranks.diagnose.page import table
from book._ext import PAGES
from book._ext.clinic.cases import ClinicDirective, change, load

SIGNS = "diagnose_data.js"
WORDS = "described_data.js"  # the table of described.js
FIGURES = "book/_data/diagnose.json"
STATIC = Path(__file__).parents[2] / "_static"
PLAIN = (
    "The search box needs JavaScript. `python -m allranks.diagnose LOG` does the same "
    "in a shell, and the questions and tables below lead to all cases."
)
Z = 1.959964  # of the normal distribution, 95 %
COLUMNS = [  # title, key of the count, key of the total
    ("right case first", "first", "known"),
    ("among the three shown", "shown", "known"),
    ("other failures taken for one of ours", "guessed", "unknown"),
    ("healthy logs with an alarm", "alarms", "healthy"),
]


class diagnose_box(nodes.container):
    """Where the form will be; until then it holds the sentence."""


class Diagnose(ClinicDirective):
    """The box."""

    optional_arguments = 0

    def run(self) -> list[nodes.Node]:
        """Check the signs of all cases, and leave a placeholder for the form."""
        cases = self.cases()
        try:
            table(cases)
        except ValueError as error:
            raise self.error(str(error)) from None
        box = diagnose_box(classes=["diagnose"])
        box["texts"] = versioned(texts(cases))
        box["words"] = versioned(words(cases))
        box += nodes.paragraph("", "", *self.inline(PLAIN))
        return [box]


def versioned(files: dict[str, str]) -> str:
    """Return the names of scripts, each with a mark of what is in it."""
    return " ".join(
        f"{name}?v={hashlib.sha256(text.encode()).hexdigest()[:8]}"
        for name, text in files.items()
    )


def words(cases: list[clinic.Specimen]) -> dict[str, str]:
    """Return the scripts that find what a description may mean."""
    code = (STATIC / "described.js").read_text("utf8")
    return {
        "described.js": code,
        WORDS: script("allRanksDescribed", described.table(cases)),
    }


def texts(cases: list[clinic.Specimen]) -> dict[str, str]:
    """Return what the answer says about each case: a script for each class, by name."""
    scripts = {}
    for kind, page in clinic.CLASSES.items():
        told = {
            case.slug: [
                flat(case.parts["Cause"]),
                flat(case.parts["Cure"]),
                change(case),
            ]
            for case in cases
            if case.fields["class"] == kind
        }
        name = f"cases_{page.removeprefix('app_clinic_')}.js"
        scripts[name] = script(f"allRanksTexts[{json.dumps(kind)}]", told)
    return scripts


def script(name: str, value: dict) -> str:
    """Return a script that sets a global name, in ASCII for any server."""
    return f"globalThis.{name}={json.dumps(value, separators=(',', ':'))}\n"


def visit(writer: HTML5Translator, node: diagnose_box) -> None:
    """Open the box, and name the scripts that it may load, in the order of classes."""
    scripts = {f"data-{name}": node[name] for name in ("texts", "words")}
    writer.body.append(writer.starttag(node, "div", **scripts))


def depart(writer: HTML5Translator, node: diagnose_box) -> None:
    """Close the box."""
    writer.body.append("</div>\n")


def add_files(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Write signs and texts, and load scripts and style on pages that have the box."""
    if app.builder.name not in PAGES or not doctree:
        return
    if any(doctree.findall(diagnose_box)):
        found, static = load(Path(app.srcdir)), Path(app.outdir, "_static")
        static.mkdir(exist_ok=True)
        files = {SIGNS: script("allRanksClinic", table(found)), **texts(found)}
        files[WORDS] = words(found)[WORDS]
        for name, text in files.items():
            (static / name).write_text(text, "utf8")
        app.add_css_file("diagnose.css")
        for name in (SIGNS, "diagnose.js", "diagnose_box.js"):
            app.add_js_file(name, priority=600, loading_method="defer")


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's formula (1927).

    >>> [round(100 * end) for end in wilson(54, 68)]
    [68, 87]
    """
    share, square = count / total, Z * Z
    middle = (share + square / (2 * total)) / (1 + square / total)
    spread = math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    half = Z * spread / (1 + square / total)
    return max(0.0, middle - half), min(1.0, middle + half)


def share(one: dict, count: str, total: str) -> str:
    """Say a share and its interval in words: ``54 of 68 (79 %, 68 to 87)``."""
    if not one[total]:
        return "none"
    low, high = wilson(one[count], one[total])
    percent = 100 * one[count] / one[total]
    words = f"{one[count]} of {one[total]}"
    return f"{words} ({percent:.0f} %, {100 * low:.0f} to {100 * high:.0f})"


def headline(fresh: list[dict]) -> str:
    """Sum up in words the result on fresh logs, which were never used for tuning."""
    if not fresh:
        return (
            "All of these sets have been looked at while signs were written, so expect "
            "less on your own log."
        )
    sums = {key: sum(one[key] for one in fresh) for _, *keys in COLUMNS for key in keys}
    first, shown, guessed, alarms = (share(sums, *keys) for _, *keys in COLUMNS)
    return (
        f"On logs that were not used to build the box, the right case comes first in "
        f"{first}, and is among the three that are shown in {shown}. Of failures that "
        f"the clinic doesn't cover, {guessed} were mistaken for one that it does; of "
        f"healthy logs, {alarms} raised an alarm. "
        "In parentheses: the share, and its 95 % interval (Wilson)."
    )


def plainly(fresh: list[dict]) -> str:
    """Say the result on fresh logs without shares and intervals."""
    if not fresh:
        return headline(fresh)
    keys = ("known", "first", "unknown", "guessed", "healthy", "alarms")
    known, first, unknown, guessed, healthy, alarms = (
        sum(one[key] for one in fresh) for key in keys
    )
    return (
        f"We tried the search box on {known} logs that were not used to build it. In "
        f"{first} of them, it named the right failure first. What does it say about a "
        f"failure that the clinic doesn't cover? We gave it {unknown} of these. The "
        f"right answer would be that nothing fits, but for {guessed} of them it named "
        f"a failure from the clinic. In {healthy} logs of healthy jobs, it found a "
        f"failure in {alarms or 'none'}."
    )


class DiagnoseFigures(ClinicDirective):
    """One plain ``sentence``; without this argument, all figures and their table."""

    def run(self) -> list[nodes.Node]:
        """Build sentence and table, and rebuild the page when the counts change."""
        self.env.note_dependency(FIGURES)
        sets = json.loads(Path(self.env.srcdir, FIGURES).read_text("utf8"))["sets"]
        fresh = [one for one in sets if not one["seen"]]
        if self.arguments:
            if self.arguments[0] != "sentence":
                raise self.error(f"diagnose-figures: no {self.arguments[0]!r}")
            return [nodes.paragraph("", plainly(fresh))]
        group = nodes.tgroup(cols=2 + len(COLUMNS))
        group += [nodes.colspec(colwidth=width) for width in (10, 20, 18, 18, 17, 17)]
        head, body = nodes.thead(), nodes.tbody()
        head += text_row(["set of logs", "seen by tuning", *(c[0] for c in COLUMNS)])
        for one in sets:
            cells = (share(one, *keys) for _, *keys in COLUMNS)
            body += text_row([one["name"], one["seen"] or "never", *cells])
        group += [head, body]
        figures = nodes.table("", group, classes=["colwidths-given"])
        text = headline(fresh)
        return [
            nodes.paragraph("", text),
            nodes.container("", figures, classes=["x-scroll"]),
        ]


def text_row(cells: Iterable[str]) -> nodes.row:
    """Return a row of a table with one text in each cell."""
    entries = [nodes.entry("", nodes.paragraph("", text)) for text in cells]
    return nodes.row("", *entries)


def setup(app: Sphinx) -> None:
    """Add both directives."""
    app.add_node(diagnose_box, html=(visit, depart))
    app.add_directive("diagnose", Diagnose)
    app.add_directive("diagnose-figures", DiagnoseFigures)
    app.connect("html-page-context", add_files)
