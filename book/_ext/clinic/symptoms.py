"""``{symptoms}``: what a reader sees, asked step by step until a few cases are left.

The questions are those of ``python -m allranks.diagnose --ask``, nested boxes that
unfold without a script. The words by which the box above finds the cases that a
description may mean are a script that it loads when there is something to describe.
"""

from html import escape

from docutils import nodes
from sphinx.application import Sphinx

from allranks import clinic
from allranks.diagnose import described
from book._ext import PAGES
from book._ext.clinic.cases import ClinicDirective
from book._ext.runs.fold import fold

STYLE = "diagnose.css"  # they stand below the box
SOURCE = "allranks/diagnose/symptoms.toml"


class Symptoms(ClinicDirective):
    """The questions, nested."""

    optional_arguments = 0

    def run(self) -> list[nodes.Node]:
        """Build the boxes."""
        self.env.note_dependency(SOURCE)
        known = {case.slug: case for case in self.cases()}
        tree = described.symptoms()["see"]
        boxes = [self.answer(one, known) for one in tree]
        return [nodes.container("", *boxes, classes=["symptoms", "no-search"])]

    def answer(self, one: dict, known: dict[str, clinic.Specimen]) -> fold:
        """Build the box of an answer: the next question, or the cases."""
        title = escape(one["answer"], quote=False).replace("'", "’")
        if "see" in one:
            ask = nodes.paragraph("", one["ask"])
            inside = [ask, *(self.answer(other, known) for other in one["see"])]
        else:
            inside = [nodes.bullet_list(bullet="-")]
            for slug in one["cases"].split():
                text = nodes.paragraph("", "", *self.link(known[slug]))
                inside[0] += nodes.list_item("", text)
        return fold("", *inside, title=title)


def add_style(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Load the style on the page that asks."""
    if app.builder.name in PAGES and 'class="symptoms' in context.get("body", ""):
        app.add_css_file(STYLE)


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_directive("symptoms", Symptoms)
    app.connect("html-page-context", add_style)
