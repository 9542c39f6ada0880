"""``{wall-chart}``: one training step on W ranks, and the same for a sheet of A2.

A script makes tabs of the layouts and moves the playhead. Without it, and on paper, the
charts stand below each other, at the moment at which a rank holds most.
"""

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
    app.connect("builder-inited", write_sheet)
    app.connect("html-page-context", add_files)
