"""What each tool finds of each hang: ``{hang-table}``, ``{hang-output}``, ``{hangs}``.

All of it is read from book/_data/hangs.json, which ``python tests/bench hangs`` writes.
``{hang-table} group`` is a table of the hangs within a process group, and
``{hang-table} meeting`` of those that occur before there is one: the fuller a disc, the
more its tool says. A cell shows a sign, and its tool tip says the verdict and the
seconds, which screen readers read. ``{hang-output} py_spy ddp-uneven-inputs`` shows
what a tool printed. The role ``{hangs}`` counts: ``{hangs}`detail.names``` are the
hangs in which DETAIL names a rank, ``{hangs}`detail``` those in which it can be used at
all, and ``{hangs}`all``` counts all of them.
"""

import json
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxRole

from allranks import hangs
from allranks.hangs import measure, tools, verdicts
from book._ext.clinic.cases import ClinicDirective

MEASURE = "measure it: python tests/bench hangs"
SIGNS = {  # of each verdict, and the words of its tool tip
    verdicts.NAMES: ("●", "names the rank"),
    verdicts.SHOWS: ("◐", "shows the wait, names no rank"),
    verdicts.SILENT: ("○", "silent"),
    verdicts.BLAMES: ("✕", "names another rank"),
    verdicts.NONE: ("–", "cannot be attached"),
}


def load(env: BuildEnvironment) -> dict:
    """Read the measurement, and have the page rebuilt when it changes."""
    env.note_dependency(hangs.DATA)
    path = Path(env.srcdir, hangs.DATA)
    if not path.is_file():
        raise LookupError(f"no {hangs.DATA}; {MEASURE}")
    return json.loads(path.read_text("utf8"))


def count(found: dict, text: str) -> int:
    """Count all hangs, or those that a tool can be used on, or has a verdict on.

    >>> count({"a": {"x": {"verdict": "names"}}, "b": {"x": {"verdict": "n/a"}}}, "x")
    1
    """
    if text == "all":
        return len(found)
    tool, _, verdict = text.partition(".")
    if any(tool not in by_tool for by_tool in found.values()):
        raise LookupError(f"no tool {tool!r} in {hangs.DATA}: {', '.join(tools.TOOLS)}")
    if verdict and verdict not in verdicts.VERDICTS:
        raise LookupError(f"no verdict {verdict!r}: {', '.join(verdicts.VERDICTS)}")
    got = [by_tool[tool]["verdict"] for by_tool in found.values()]
    return got.count(verdict) if verdict else len(got) - got.count(verdicts.NONE)


class HangTable(ClinicDirective):
    """For each hang (row), what each tool (column) finds."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Build the table; the last row counts hangs in which a tool names a rank."""
        self.cases()  # called only to make the page depend on them
        try:
            data, waits = load(self.env), hangs.cases(Path(self.env.srcdir))
        except LookupError as error:
            raise self.error(str(error)) from None
        which = self.arguments[0]
        if which not in ("group", "meeting"):
            raise self.error(f"hang-table: group or meeting, not {which!r}")
        found, shown = data["hangs"], []
        for case in waits:
            if case.slug not in found:
                raise self.error(f"{case.slug} is not measured; {MEASURE}")
            if measure.meets_late(case) == (which == "meeting"):
                shown.append(case)
        some = {case.slug: found[case.slug] for case in shown}
        # What most tools see comes first, so that dark cells and light ones are apart.
        shown.sort(key=lambda case: -len(clear(found[case.slug])))
        keys = [key for key in tools.TOOLS if key != "live_ranks"]  # not for a job
        wanted = [key for key in keys if count(some, key)]
        group = nodes.tgroup(cols=1 + len(wanted))
        widths = [100 - 8 * len(wanted), *[8] * len(wanted)]
        group += [nodes.colspec(colwidth=width) for width in widths]
        group[0]["stub"] = True  # the failure is the heading of its row
        head, body = nodes.thead(), nodes.tbody()
        titles = [self.inline(tools.TOOLS[key].title) for key in wanted]
        head += self.row([[nodes.Text("the failure")], *titles])
        for case in shown:
            cells = [self.cell(found[case.slug][key]) for key in wanted]
            body += self.row([self.link(case), *cells])
        sums = [self.total(some, key) for key in wanted]
        body += self.row([[nodes.emphasis("", "names the rank in")], *sums])
        group += [head, body]
        table = nodes.table("", group, classes=["hang-table", "colwidths-given"])
        when = "Measured on {date}: {machine}, {cores} cores, PyTorch {torch}, gloo."
        note = nodes.paragraph(
            "", when.format(**data["machine"]), classes=["hang-note"]
        )
        when = (
            "after the ranks have met" if which == "group" else "before the ranks meet"
        )
        head = f"<b>{len(some)} of the {len(found)} hangs, {when}</b>"
        return [self.legend(head, some, wanted), table, note]

    def legend(self, head: str, some: dict, keys: list[str]) -> nodes.raw:
        """Say which hangs the table has, and what its signs mean."""
        used = {by_tool[key]["verdict"] for by_tool in some.values() for key in keys}
        parts = [
            f"<span>{mark(verdict)} {words}</span>"
            for verdict, (_, words) in SIGNS.items()
            if verdict in used
        ]
        html = f'<p class="hang-legend">{head}{"".join(parts)}</p>'
        return nodes.raw("", html, format="html")

    def total(self, some: dict, key: str) -> list[nodes.Node]:
        """Say in how many hangs a tool names the rank, in two lines on a phone."""
        whole = nodes.raw("", f"<wbr>{count(some, key)}", format="html")
        return [nodes.Text(f"{count(some, f'{key}.names')}/"), whole]

    def cell(self, finding: dict) -> list[nodes.Node]:
        """Show the verdict as a sign, with a tool tip."""
        _, words = SIGNS[finding["verdict"]]
        if finding.get("seconds") is not None:
            words += f", after {finding['seconds']:.1f} s"
        return [nodes.raw("", mark(finding["verdict"], words), format="html")]


def mark(verdict: str, tip: str = "") -> str:
    """Return the sign of a verdict, as a disc; only a tip is read aloud."""
    name, (sign, _) = verdict.replace("/", ""), SIGNS[verdict]
    tip = f'<span class="hang-tip">{tip}</span>' if tip else ""
    return (
        f'<span class="hang-{name}"><span aria-hidden="true">{sign}</span>{tip}</span>'
    )


def clear(by_tool: dict) -> list[str]:
    """Return the tools that name the right rank of a hang."""
    return [key for key, one in by_tool.items() if one["verdict"] == verdicts.NAMES]


class HangOutput(ClinicDirective):
    """What a tool printed about a hang."""

    required_arguments = 2
    optional_arguments = 0

    def run(self) -> list[nodes.Node]:
        """Show the output in a literal block."""
        key, slug = self.arguments
        try:
            text = load(self.env)["hangs"][slug][key]["raw"]
        except LookupError as error:
            message = f"no output of {key} on {slug} ({error}); {MEASURE}"
            raise self.error(message) from None
        block = nodes.literal_block(text, text, language="ranks")
        block["classes"] += ["specimen-output", "no-copy"]
        return [block]


class Hangs(SphinxRole):
    """A number of hangs in a sentence."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Put the count into the sentence."""
        try:
            text = str(count(load(self.env)["hangs"], self.text))
        except LookupError as error:
            message = self.inliner.reporter.error(f"hangs: {error}", line=self.lineno)
            raw = self.inliner.problematic(self.rawtext, self.rawtext, message)
            return [raw], [message]
        return [nodes.Text(text)], []


def setup(app: Sphinx) -> None:
    """Add the directives and the role."""
    app.add_directive("hang-table", HangTable)
    app.add_directive("hang-output", HangOutput)
    app.add_role("hangs", Hangs())
