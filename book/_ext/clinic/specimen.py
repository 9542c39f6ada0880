"""``{specimens}``: programs that go wrong, how they ended, and their repairs.

    ```{specimens} errata
    :source: a
    ```

shows the folder's specimens whose row begins with ``a``, in order, each in a section of
its own. ``{specimen-table} errata`` lists all of them, with links. What a specimen
printed is what ``make notebooks`` recorded, and one without a record fails the build.
"""

from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from allranks import clinic
from allranks.clinic import errata

VERDICTS = {
    "raises": "It fails.",
    "warns": "It runs, with a warning.",
    "hangs": "It waits for ever.",
    "runs": "Nothing complains.",
}
LABELS = {
    "wrong": "Wrong",
    "right": "Right",
    "claim": "The claim, tried",
    "fact": "True",
}
GPU = "GPU"


class SpecimenDirective(SphinxDirective):
    """What both directives share: the folder, inline text, links to chapters, rows."""

    required_arguments = 1

    def folder(self) -> list[clinic.Specimen]:
        """Read the folder's specimens, and have the page rebuilt when one changes."""
        folder = self.arguments[0]
        self.env.note_dependency(f"{folder}/{clinic.RECORDS}")
        try:
            found = errata.folder(Path(self.env.srcdir, folder))
        except (SyntaxError, ValueError) as error:
            raise self.error(str(error)) from None
        for specimen in found:
            self.env.note_dependency(f"{folder}/{specimen.path.name}")
        return found

    def inline(self, text: str) -> list[nodes.Node]:
        """Parse one line of Markdown."""
        return self.markdown(text)[0].children

    def markdown(self, text: str) -> list[nodes.Node]:
        """Parse Markdown."""
        box = nodes.container()
        lines = StringList(text.splitlines(), source="")
        self.state.nested_parse(lines, self.content_offset, box)
        return box.children

    def chapter(self, specimen: clinic.Specimen) -> list[nodes.Node]:
        """Return a link to the chapter that teaches the right way."""
        label = specimen.fields["chapter"]
        if not Path(self.env.srcdir, "book", f"{label}.md").is_file():
            return [nodes.literal("", label)]  # a test refuses labels without a page
        return self.inline(f"{{ref}}`{label}`")

    def row(self, cells: list[list[nodes.Node]]) -> nodes.row:
        """Build a row of cells with inline content."""
        row = nodes.row()
        for content in cells:
            row += nodes.entry("", nodes.paragraph("", "", *content))
        return row


class Specimens(SpecimenDirective):
    """The specimens of one source, in full."""

    option_spec: ClassVar = {"source": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Build a section for each specimen."""
        source = self.options.get("source", "")
        shown = [s for s in self.folder() if s.row.startswith(source)]
        if not shown:
            raise self.error(f"{self.arguments[0]} has no specimen {source}")
        return [self.section(specimen) for specimen in shown]

    def section(self, specimen: clinic.Specimen) -> nodes.section:
        """Show title, prose, and each cell with its outcome."""
        try:
            outcomes = clinic.recorded(specimen)
        except LookupError as error:
            raise self.error(str(error)) from None
        anchor = f"{self.arguments[0]}-{specimen.row}"
        section = nodes.section(ids=[anchor], names=[anchor], classes=["specimen"])
        self.state.document.note_explicit_target(section, section)  # for {ref}
        title = nodes.title("", f"{specimen.row.upper()}. ")
        title += self.inline(specimen.title.removesuffix("."))
        section += title
        section += self.markdown(specimen.prose)
        if specimen.given:
            section += self.cell("Given, for both", specimen.given, None, "given")
        for name, code in specimen.cells.items():
            command = specimen.commands.get(name)
            section += self.cell(LABELS[name], code, command, name)
            section += self.outcome(specimen, name, outcomes[name])
        section += self.foot(specimen)
        return section

    def cell(self, label: str, code: str, command: str | None, name: str) -> nodes.Node:
        """Show labeled code, and the command that runs it."""
        box = nodes.container(classes=["specimen-cell", f"specimen-{name}"])
        box += nodes.paragraph(label, label, classes=["specimen-label"])
        box += nodes.literal_block(code, code, language="python")
        if command:
            text = f"$ {command}"
            box += nodes.literal_block(text, text, language="console")
        return box

    def outcome(
        self, specimen: clinic.Specimen, name: str, outcome: clinic.Outcome
    ) -> nodes.Node:
        """Show what a cell printed, and say how it ended."""
        box = nodes.container(classes=["specimen-outcome"])
        if name in ("wrong", "claim"):
            verdict = VERDICTS[outcome.status]
            box += nodes.paragraph(verdict, verdict, classes=["specimen-verdict"])
        classes = ["specimen-output", "no-copy"]
        box += nodes.literal_block(
            outcome.text, outcome.text, language="ranks", classes=classes
        )
        if name == "wrong" and (other := specimen.fields.get("elsewhere")):
            words = "` or `".join(other.split(" or "))
            box += self.markdown(f"With a CUDA build, where no GPU is found: `{words}`")
        return box

    def foot(self, specimen: clinic.Specimen) -> nodes.paragraph:
        """Say where the specimen ran, and link its chapter."""
        place = specimen.fields["runs on"]
        how = f"{'in' if place == 'one process' else 'on'} {place}"
        if all(cell in specimen.commands for cell in specimen.cells):
            rehearsed = f", {{ref}}`rehearsed <app_rehearse>` {how}"
            how = "by the commands above" + (rehearsed if "GPU" in place else "")
        foot = nodes.paragraph("", "", *self.inline(f"Run {how}. "), nodes.Text(" "))
        if specimen.fields.get("hardware") == GPU:
            foot += nodes.strong("", "About GPUs")
            foot += nodes.Text(": not run on one here. ")
        foot += nodes.Text("More: ")
        foot += self.chapter(specimen)
        foot["classes"].append("specimen-foot")
        return foot


class SpecimenTable(SpecimenDirective):
    """One row for each specimen: its number, what it is, how it ends, its chapter."""

    def run(self) -> list[nodes.Node]:
        """Build the table."""
        heads = ["row", "slip or claim", "what happens", "chapter"]
        group = nodes.tgroup(cols=len(heads))
        for width in (11, 38, 20, 31):
            group += nodes.colspec(colwidth=width)
        head, body = nodes.thead(), nodes.tbody()
        head += self.row([[nodes.Text(text)] for text in heads])
        for specimen in self.folder():
            body += self.row(self.cells(specimen))
        group += [head, body]
        return [nodes.table("", group, classes=["specimen-table", "colwidths-given"])]

    def cells(self, specimen: clinic.Specimen) -> list[list[nodes.Node]]:
        """Build the four cells of a specimen."""
        anchor = f"{self.arguments[0]}-{specimen.row}"
        link = nodes.reference("", specimen.row.upper(), refid=anchor, internal=True)
        outcome = specimen.fields["outcome"]
        silent = "wrong" if "wrong" in specimen.cells else "no error"
        verdict = "runs, " + silent if outcome == "runs" else outcome
        gpu = " (GPU)" if specimen.fields.get("hardware") == GPU else ""
        title = self.inline(specimen.title.removesuffix("."))
        return [[link], title, [nodes.Text(verdict + gpu)], self.chapter(specimen)]


def setup(app: Sphinx) -> None:
    """Add the directives."""
    app.add_directive("specimens", Specimens)
    app.add_directive("specimen-table", SpecimenTable)
