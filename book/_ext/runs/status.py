"""``{status}``: when each notebook and script ran, how long, and on how many ranks.

The records come from executed.py, and from replayed.py when each was last run again and
printed the same. ``{test-status}`` shows the pytest report (JUnit XML)
that ``ALLRANKS_TESTS`` names, for which ``make test`` builds the page again after the
tests.
"""

import os
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

from book._ext.runs import records, replayed
from book._ext.runs.executed import DATA, FAILED, GOOD, SKIPPED, files, load, verdict

SAID = {SKIPPED: "skipped checks", "never run": "never ran"}


def rows(root: Path) -> list[list[str]]:
    """Build a row for each notebook, each script, and each folder of specimens."""
    runs, found, folders = load(root), [], {"errata": [], "clinic": []}
    again = replays(root)
    for name in files(root):
        run, end = runs.get(name, {}), verdict(root, name, runs)
        if (folder := name.partition("/")[0]) in folders:
            folders[folder].append((run, end, again.get(name, "")))
            continue
        found.append([name, *cells(run, end, again.get(name, ""))])
    for folder, played in folders.items():
        if not played:
            continue
        known = [run for run, *_ in played if run]
        ends = Counter(end for _, end, _ in played)
        oldest = min(date for *_, date in played)
        all_ = {
            "date": min((run["date"] for run in known), default=""),
            "seconds": sum(run["seconds"] for run in known),
            "torch": ", ".join(sorted({run["torch"] for run in known})),
            "world_sizes": sorted({n for run in known for n in run["world_sizes"]}),
        }
        text = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        name = f"{folder}/ ({len(played)} specimens)"
        found.append([name, *cells(all_, text, oldest)])
    return found


def replays(root: Path) -> dict[str, str]:
    """Return when each file was last run again: scripts with their page's commands."""
    dates = {name: facts["date"] for name, facts in replayed.load(root).items()}
    for page in root.glob("book/ch*.md"):
        for command in records.commands(page.read_text("utf8")):
            for script in re.findall(r"scripts/ch\w+\.py", command.line):
                dates[script] = dates.get(f"book/{page.name}", "")
    return dates


def cells(run: dict, end: str, again: str) -> list[str]:
    """Return the cells of a run's row, without the file's name.

    Args:
        run: what was recorded.
        end: how it ended.
        again: when it was last replayed.
    """
    if not run:
        return [end, "–", "–", "–", "–", "–"]
    ranks = ", ".join(map(str, run["world_sizes"])) or "one process"
    if devices := run.get("vgpus"):
        ranks += f"; {devices} virtual GPUs"
    seconds = f"{run['seconds']:.0f} s"
    return [end, run["date"], again or "–", seconds, ranks, run["torch"]]


def tests(path: Path) -> list[list[str]]:
    """Build a row for each test file of a JUnit report."""
    counts: dict[str, Counter] = {}
    for case in ElementTree.parse(path).iterfind(".//testcase[@name]"):
        name = (case.get("classname") or case.get("name")).replace("/", ".")
        name = re.sub(r"\.Test\w+$", "", name)
        count = counts.setdefault(name, Counter())
        ends = {child.tag for child in case}
        count["tests"] += 1
        if ends & {"failure", "error"}:
            count["failed"] += 1
        if "skipped" in ends:
            count["skipped"] += 1
        count["seconds"] += float(case.get("time", 0))
    return [
        [
            name,
            FAILED if count["failed"] + count["skipped"] else GOOD,
            *(str(count[key]) for key in ("tests", "failed", "skipped")),
            f"{count['seconds']:.0f} s",
        ]
        for name, count in sorted(counts.items())
    ]


class Status(SphinxDirective):
    """The table of runs, and a summary below it."""

    heads = ("file", "end", "recorded", "replayed", "took", "ranks", "PyTorch")
    widths = (28, 12, 13, 13, 8, 14, 12)

    def run(self) -> list[nodes.Node]:
        """Build the table by comparing the records with the files as they are now."""
        root = Path(self.env.srcdir)
        for name in [DATA, replayed.DATA, *files(root)]:
            self.env.note_dependency(name)
        found = rows(root)
        runs = load(root)
        ends = Counter(verdict(root, name, runs) for name in files(root))
        text = "; ".join(
            f"{count} of them {SAID.get(end, end)}"
            for end, count in sorted(ends.items())
            if end != GOOD
        )
        about = nodes.reference("", "what that means", refid="status-read")
        note = nodes.paragraph("", f"{sum(ends.values())} files")
        if text:
            note += [nodes.Text(f", {text} ("), about, nodes.Text(")")]
        note += nodes.Text("." if text else ", all passed.")
        return [self.table(found), note]

    def table(self, found: list[list[str]]) -> nodes.table:
        """Build a table of texts, with whatever did not pass in bold."""
        group = nodes.tgroup(cols=len(self.heads))
        for width in self.widths:
            group += nodes.colspec(colwidth=width)
        head, body = nodes.thead(), nodes.tbody()
        head += self.row(list(self.heads))
        for texts in found:
            body += self.row(texts)
        group += [head, body]
        return nodes.table("", group, classes=["status-table"])

    def row(self, texts: list[str]) -> nodes.row:
        """Build one row."""
        row = nodes.row()
        for number, text in enumerate(texts):
            strong = (
                number == 1
                and text != "end"
                and not re.fullmatch(r"(\d+ )?passed", text)
            )
            kind = nodes.strong if strong else nodes.inline
            kind = nodes.literal if number == 0 and "/" in text else kind
            row += nodes.entry("", nodes.paragraph("", "", kind("", text)))
        return row


class TestStatus(Status):
    """The tests of this build, if there is a report of them."""

    heads = ("tests in", "end", "tests", "failed", "skipped", "took")
    widths = (40, 15, 10, 10, 10, 15)

    def run(self) -> list[nodes.Node]:
        """Read the report, or say that there is none."""
        report = Path(os.environ.get("ALLRANKS_TESTS", ""))
        if not report.is_file():
            text = "This copy was built without its tests: make test adds their report."
            return [nodes.paragraph("", text)]
        return [self.table(tests(report))]


def always(
    app: Sphinx,
    env: BuildEnvironment,
    added: set[str],
    changed: set[str],
    removed: set[str],
) -> list[str]:
    """Have the page with the reports read again at each build."""
    return [name for name in env.found_docs if name.endswith("app_status")]


def setup(app: Sphinx) -> None:
    """Add the directives."""
    app.add_directive("status", Status)
    app.add_directive("test-status", TestStatus)
    app.connect("env-get-outdated", always)
