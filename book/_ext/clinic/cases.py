"""``{clinic}``: failures of a class, each with its run, its cause and its cure.

    ```{clinic} process group
    ```

shows every case of the class in ``clinic/``, each in a section of its own. What a case
printed is what ``make notebooks`` recorded, and a case without a record fails the
build. The directives that list cases are in lists.py.
"""

from difflib import unified_diff
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from allranks import clinic
from book._ext import PAGES
from book._ext.clinic.specimen import SpecimenDirective

FOLDER = "clinic"
ENDS = {
    "raises": "It fails.",
    "dies": "The process dies, below Python.",
    "hangs": "It waits for ever.",
    "violates": "Nothing complains. The last line is the check's.",
    "warns": "It runs, with a warning.",
    "runs": "Nothing complains.",
}
SYMPTOMS = {
    "crash": "fails",
    "hang": "hangs",
    "silent": "silently wrong",
    "slow": "slow",
}
NAMES = ("torch", "gloo")  # lower case even at the start of a sentence


def load(root: Path) -> list[clinic.Specimen]:
    """Read all cases, by class and name."""
    return clinic.folder(root / FOLDER)


def change(case: clinic.Specimen) -> str:
    """Return the whole broken code as a diff of what the cure removes and adds."""
    sides = []
    for cell in "broken", "fixed":
        command = case.commands.get(cell)
        shown = [f"$ {command}"] if command else []
        sides.append([*shown, *case.cells[cell].split("\n")])
    lines = list(unified_diff(*sides, n=1000, lineterm=""))[3:]
    return "\n".join(line.rstrip() for line in lines)


class ClinicDirective(SpecimenDirective):
    """What ``{clinic}`` and the directives in lists.py share."""

    required_arguments = 0
    optional_arguments = 1
    final_argument_whitespace = True

    def cases(self) -> list[clinic.Specimen]:
        """Read all cases, and have the page rebuilt when one of them changes."""
        root = Path(self.env.srcdir)
        self.env.note_dependency(f"{FOLDER}/{clinic.RECORDS}")
        try:
            found = load(root)
        except (SyntaxError, ValueError) as error:
            raise self.error(str(error)) from None
        for case in found:
            self.env.note_dependency(f"{FOLDER}/{case.path.name}")
        return found

    def link(self, case: clinic.Specimen) -> list[nodes.Node]:
        """Return a link to the case, with the case's title as its text."""
        return self.inline(f"[{case.title.removesuffix('.')}](#clinic-{case.slug})")

    def output(self, text: str, name: str) -> nodes.Node:
        """Show what a cell printed."""
        block = nodes.literal_block(text, text, language="ranks")
        block["classes"] += ["specimen-output", "no-copy", f"case-{name}"]
        return nodes.container("", block, classes=["specimen-outcome"])


class Clinic(ClinicDirective):
    """The cases of one class, in full."""

    required_arguments = 1
    optional_arguments = 0

    def run(self) -> list[nodes.Node]:
        """Build a section for each case."""
        name = self.arguments[0]
        if name not in clinic.CLASSES:
            known = ", ".join(clinic.CLASSES)
            raise self.error(f"the clinic has no class {name!r}: {known}")
        shown = [case for case in self.cases() if case.fields["class"] == name]
        return [self.section(case) for case in shown]

    def section(self, case: clinic.Specimen) -> nodes.section:
        """Build a case: symptom, run, cause, cure, its run, and how to find it."""
        anchor = f"clinic-{case.slug}"
        section = nodes.section(ids=[anchor], names=[anchor], classes=["case"])
        self.state.document.note_explicit_target(section, section)  # for {ref}
        section += nodes.title("", "", *self.inline(case.title.removesuffix(".")))
        section += self.kind(case)
        section += self.part(case, "You see")
        if case.runs:
            try:
                outcomes = clinic.recorded(case)
            except LookupError as error:
                raise self.error(str(error)) from None
            section += self.output(outcomes["broken"].text, "broken")
        else:
            section += self.output(case.quoted, "broken")
        section += self.part(case, "Cause")
        section += self.part(case, "Cure")
        if case.given:
            section += self.code("Shared setup", case.given, "python", "given")
        section += self.code("Broken → fixed", change(case), "diff", "change")
        if case.runs:
            section += self.output(outcomes["fixed"].text, "fixed")
        if case.check:
            section += self.code(f"Must hold: {case.law}", case.check, "python", "law")
        section += self.part(case, "Next time")
        section += self.foot(case)
        return section

    def kind(self, case: clinic.Specimen) -> nodes.paragraph:
        """Say how the failure shows itself, and where it was run."""
        symptom = SYMPTOMS[case.fields["symptom"]]
        if not case.runs:
            where = "quoted from machines with GPUs, not run here"
        elif "broken" in case.commands:
            where = "we ran its command"
        else:
            place = case.fields["runs on"]
            where = f"we ran it {'in' if place == 'one process' else 'on'} {place}"
        if case.runs and case.check:  # its AssertionError looks like the failure's own
            where += ", then checked (“Must hold” below)"
        kind = nodes.paragraph(classes=["case-kind"])
        kind += nodes.strong("", symptom, classes=[f"case-{case.fields['symptom']}"])
        kind += nodes.Text(f" · {where}")
        return kind

    def part(self, case: clinic.Specimen, name: str) -> list[nodes.Node]:
        """Build a paragraph that begins with its name."""
        text = case.parts[name]
        if not text.startswith(NAMES):
            text = text[0].upper() + text[1:]
        return self.markdown(f"**{name}.** {text}")

    def code(self, label: str, text: str, language: str, name: str) -> nodes.Node:
        """Show labeled code."""
        box = nodes.container(classes=["specimen-cell", f"case-{name}"])
        label = nodes.paragraph("", "", *self.inline(label), classes=["specimen-label"])
        box += [label, nodes.literal_block(text, text, language=language)]
        return box

    def foot(self, case: clinic.Specimen) -> nodes.paragraph:
        """Build the links to the chapter and to the threads."""
        foot = nodes.paragraph("", "More: ", classes=["specimen-foot"])
        foot += self.chapter(case)
        for address, note in case.links:
            text = note or address.removeprefix("https://").removesuffix("/")
            foot += [nodes.Text(" · "), nodes.reference("", text, refuri=address)]
        return foot


def add_style(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Load the clinic's style on its own pages."""
    if "app_clinic" in page and app.builder.name in PAGES:
        app.add_css_file("clinic.css")


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_directive("clinic", Clinic)
    app.connect("html-page-context", add_style)
