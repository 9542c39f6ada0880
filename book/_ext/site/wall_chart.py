"""``{wall-chart}``: one training step on W ranks; ``{wall-sheet}``: the same on A2.

A script makes tabs of the layouts and moves the playhead. Without it, and on paper, the
charts stand below each other, at the moment at which a rank holds most.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from allranks.topics.step import picture

SHEET = "wall-chart-a2.svg"


class WallChart(SphinxDirective):
    """The charts of all layouts."""

    def run(self) -> list[nodes.Node]:
        """Draw them."""
        for path in Path(picture.__file__).parent.glob("*.py"):
            self.env.note_dependency(str(path))
        return [nodes.raw("", picture.page_figure(), format="html")]


class WallSheet(SphinxDirective):
    """The sentence that offers the sheet."""

    def run(self) -> list[nodes.Node]:
        """Link to the file that ``write_sheet`` writes."""
        link = f'<a href="../_static/{SHEET}">sheet for A2</a>'
        text = f"<p>Yes: open the {link} in a browser, and print it.</p>"
        return [nodes.raw("", text, format="html")]


def still(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Keep the sentence, but no link, where there is no such file: on paper."""
    for raw in doctree.findall(nodes.raw):
        if app.builder.name != "html" and SHEET in raw.astext():
            text = re.sub(
                "<a href.*</a>", "sheet for A2 on the book's site", raw.astext()
            )
            raw.children = [nodes.Text(text)]


def add_files(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Load the script and the style on a page that has the chart."""
    if 'class="wall-chart"' in context.get("body", "") and app.builder.name == "html":
        app.add_css_file("wall_chart.css")
        app.add_js_file("wall_chart.js", loading_method="defer")


def write_sheet(app: Sphinx) -> None:
    """Write the sheet, before pages link to it."""
    if app.builder.name == "html":
        folder = Path(app.outdir, "_static")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SHEET).write_text(picture.sheet(), "utf8")


def setup(app: Sphinx) -> None:
    """Add the directive and its files."""
    app.add_directive("wall-chart", WallChart)
    app.add_directive("wall-sheet", WallSheet)
    app.connect("doctree-resolved", still)
    app.connect("builder-inited", write_sheet)
    app.connect("html-page-context", add_files)
