"""Lists of the clinic: ``{clinic-index}``, ``{clinic-guard}``, ``{clinic-count}``.

``{clinic-index}`` links all cases, with a table for each class. ``{clinic-guard}
caught`` and ``{clinic-guard} beyond`` list what ``allranks.guard`` catches, and what it
cannot see; ``{clinic-guard} SLUG`` shows its whole message of one case. The role
``{clinic-count}`` counts the cases of a class or of a symptom, or those that are
``runs``, ``quoted``, ``caught``, ``beyond`` or ``all``.
"""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

from allranks import clinic
from book._ext.clinic.cases import FOLDER, SYMPTOMS, ClinicDirective, load

HEADINGS = {  # where the name of a class is no heading
    "TP/FSDP2": "Tensor parallelism and FSDP2",
    "AMP": "Mixed precision",
    "silent wrong": "Silently wrong",
}


class ClinicIndex(ClinicDirective):
    """All cases: a section and a table for each class."""

    def run(self) -> list[nodes.Node]:
        """Build a section for each class that has cases."""
        found, sections = self.cases(), []
        for name, page in clinic.CLASSES.items():
            rows = [case for case in found if case.fields["class"] == name]
            rows.sort(key=lambda case: case.title.strip("`").lower())  # to be scanned
            if rows:
                sections.append(self.section(name, page, rows))
        return sections

    def section(
        self, name: str, page: str, rows: list[clinic.Specimen]
    ) -> nodes.section:
        """Build a class's title, a link to its page, and its table."""
        anchor = f"index-{page.removeprefix('clinic_')}"
        section = nodes.section(ids=[anchor], names=[anchor])
        self.state.document.note_explicit_target(section, section)
        section += nodes.title("", HEADINGS.get(name, f"{name[0].upper()}{name[1:]}"))
        text = f"{{ref}}`Read the code, the cause and the fix of each <{page}>`."
        section += nodes.paragraph("", "", *self.inline(text))
        group = nodes.tgroup(cols=2)
        group += [nodes.colspec(colwidth=75), nodes.colspec(colwidth=25)]
        head, body = nodes.thead(), nodes.tbody()
        head += self.row([[nodes.Text("failure")], [nodes.Text("what happens")]])
        for case in rows:
            kind = SYMPTOMS[case.fields["symptom"]] + ("" if case.runs else " (quoted)")
            body += self.row([self.link(case), [nodes.Text(kind)]])
        group += [head, body]
        table = nodes.table("", group, classes=["clinic-index", "colwidths-given"])
        section += table
        return section


class ClinicGuard(ClinicDirective):
    """A list of what the guard catches, or of what is beyond it and why.

    With the slug of a case that is caught, the guard's message as the ranks printed it.
    """

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Build the message, or the list, in which a caught case has what was said."""
        which, items = self.arguments[0], nodes.bullet_list(bullet="-")
        cases = self.cases()
        for case in cases:
            if case.slug == which and "guarded" in case.cells:
                return [self.output(clinic.recorded(case)["guarded"].text, "guarded")]
        if which not in ("caught", "beyond"):
            raise self.error(f"clinic-guard: a case, caught or beyond, not {which!r}")
        for case in cases:
            if case.fields["symptom"] != "silent":
                continue
            if which == "beyond" and "beyond" in case.fields:
                text = [nodes.Text(": "), *self.inline(case.fields["beyond"])]
            elif which == "caught" and "guarded" in case.cells:
                said = clinic.recorded(case)["guarded"].text.splitlines()[-1]
                said = said.partition("GuardError: ")[2]
                text = [nodes.Text(": "), nodes.inline("", f"“{said}”")]
            else:
                continue
            paragraph = nodes.paragraph("", "", *self.link(case), *text)
            items += nodes.list_item("", paragraph)
        return [items]


class ClinicCount(SphinxRole):
    """A number of cases in a sentence."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Put the count into the sentence."""
        tests = {
            "all": lambda case: True,
            "runs": lambda case: case.runs,
            "quoted": lambda case: not case.runs,
            "caught": lambda case: "guarded" in case.cells,
            "beyond": lambda case: "beyond" in case.fields,
        }
        for kind in SYMPTOMS:
            tests[kind] = lambda case, kind=kind: case.fields["symptom"] == kind
        for kind in clinic.CLASSES:
            tests[kind] = lambda case, kind=kind: case.fields["class"] == kind
        if self.text not in tests:
            text = f"clinic-count: not {self.text!r}"
            message = self.inliner.reporter.error(text, line=self.lineno)
            raw = self.inliner.problematic(self.rawtext, self.rawtext, message)
            return [raw], [message]
        found = load(Path(self.env.srcdir))
        for case in found:
            self.env.note_dependency(f"{FOLDER}/{case.path.name}")
        return [nodes.Text(str(len([*filter(tests[self.text], found)])))], []


def setup(app: Sphinx) -> None:
    """Add the directives and the role."""
    app.add_directive("clinic-index", ClinicIndex)
    app.add_directive("clinic-guard", ClinicGuard)
    app.add_role("clinic-count", ClinicCount())
