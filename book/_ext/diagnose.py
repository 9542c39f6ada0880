"""``{diagnose}``: a box that finds the clinic's cases in a pasted log.

The page loads three scripts: the signs of all cases, made from ``clinic/`` at each
build; the search, which is that of ``python -m allranks.diagnose``; and the form. It
needs no server and sends nothing. Without JavaScript, and on paper, a sentence names
the other ways.
"""

import json
from pathlib import Path

from clinic_cases import ClinicDirective, load
from docutils import nodes
from quiz_nodes import PAGES

from allranks.signs import table

DATA = "diagnose_data.js"
PLAIN = (
    "The search box needs JavaScript. `python -m allranks.diagnose LOG` does the same "
    "in a shell, and the tables below list all cases."
)


class diagnose_box(nodes.container):
    """Where the form comes; it holds the sentence."""


class Diagnose(ClinicDirective):
    """The box."""

    optional_arguments = 0

    def run(self) -> list[nodes.Node]:
        """Check the signs of all cases, and leave a place for the form."""
        try:
            table(self.cases())
        except ValueError as error:
            raise self.error(str(error)) from None
        box = diagnose_box(classes=["diagnose"])
        box += nodes.paragraph("", "", *self.inline(PLAIN))
        return [box]


def visit(writer, node: diagnose_box) -> None:
    """Open the box."""
    writer.body.append(writer.starttag(node, "div"))


def depart(writer, node: diagnose_box) -> None:
    """Close it."""
    writer.body.append("</div>\n")


def add_files(app, pagename, templatename, context, doctree) -> None:
    """Load the scripts and the style where the box stands, and write the signs."""
    if app.builder.name not in PAGES or not doctree:
        return
    if any(doctree.findall(diagnose_box)):
        found = table(load(Path(app.srcdir)))
        text = json.dumps(found, ensure_ascii=True, separators=(",", ":"))
        file = Path(app.outdir, "_static", DATA)
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"globalThis.allRanksClinic={text}\n", "utf8")
        app.add_css_file("diagnose.css")
        for name in (DATA, "diagnose.js", "diagnose_box.js"):
            app.add_js_file(name, priority=600, loading_method="defer")


def setup(app) -> dict:
    """Add the directive."""
    app.setup_extension("quiz_nodes")
    app.setup_extension("diagnose_figures")
    app.add_node(diagnose_box, html=(visit, depart))
    app.add_directive("diagnose", Diagnose)
    app.connect("html-page-context", add_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
