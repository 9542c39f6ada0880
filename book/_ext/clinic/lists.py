"""Lists of the clinic: ``{clinic-index}``, ``{clinic-guard}``, ``{clinic-count}``.

``{clinic-index}`` links all cases: a fold for each class, with the name of its page and
the number of its cases. ``{clinic-guard}
caught`` and ``{clinic-guard} beyond`` list what ``allranks.guard`` catches, and what it
cannot see; ``{clinic-guard} SLUG`` shows its whole message of one case. The role
``{clinic-count}`` counts the cases of a class or of a symptom, or those that are
``runs``, ``quoted``, ``caught``, ``beyond`` or ``all``.
"""

import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

from allranks import clinic
from book._ext.clinic.cases import FOLDER, SYMPTOMS, ClinicDirective, load
from book._ext.runs.fold import fold

TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


class ClinicIndex(ClinicDirective):
    """All cases: a fold for each class, which has the name of the class's page."""

    def run(self) -> list[nodes.Node]:
        """Build a fold for each class that has cases."""
        found, folds = self.cases(), []
        for name, page in clinic.CLASSES.items():
            listed = [case for case in found if case.fields["class"] == name]
            listed.sort(key=lambda case: case.title.strip("`").lower())  # to be scanned
            if listed:
                folds.append(self.fold(page, listed))
        return [nodes.container("", *folds, classes=["clinic-index", "no-search"])]

    def fold(self, page: str, listed: list[clinic.Specimen]) -> fold:
        """Build a class's fold: a link to its page, and a link to each case."""
        path, title = Path(self.env.srcdir, "book", f"{page}.md"), page
        if path.is_file():
            self.env.note_dependency(f"book/{page}.md")
            title = TITLE.search(path.read_text("utf8"))[1]
        text = f"{{ref}}`Read the code, the cause and the fix of each <{page}>`."
        items = nodes.bullet_list(bullet="-")
        for case in listed:
            symptom = case.fields["symptom"]
            tags = [(symptom, SYMPTOMS[symptom])]
            tags += [] if case.runs else [("quoted", "quoted")]
            words = self.link(case)
            for name, word in tags:
                words += [nodes.Text(" "), nodes.inline("", word)]
                words[-1]["classes"] += ["case-tag", f"case-{name}"]
            items += nodes.list_item("", nodes.paragraph("", "", *words))
        heading = f"<span>{escape(title)}</span> <span>{len(listed)} cases</span>"
        inside = nodes.paragraph("", "", *self.inline(text)), items
        return fold(
            "",
            *inside,
            title=heading,
            ids=[f"index-{page.removeprefix('app_clinic_')}"],
        )


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
