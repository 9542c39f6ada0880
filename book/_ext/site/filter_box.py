"""``{filter-box} clinic`` or ``glossary``: narrow a long list by words and by kind.

The list is in the page, so that it is all there without JavaScript and on paper;
``filter.js`` fills the box, and what a reader chose is in the page's address.
"""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

LISTS = ("clinic", "glossary")


class FilterBox(SphinxDirective):
    """The place of the box, above the list that it narrows."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Reserve the place."""
        if self.arguments[0] not in LISTS:
            raise self.error(
                f"filter-box: {' or '.join(LISTS)}, not {self.arguments[0]}"
            )
        box = f'<div class="filter" data-filter="{self.arguments[0]}"></div>'
        return [nodes.raw("", box, format="html")]


def add_script(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Load what the box needs, on pages that have one."""
    if app.builder.name == "html" and 'class="filter"' in context.get("body", ""):
        app.add_css_file("filter.css")
        app.add_js_file("filter.js", priority=600, loading_method="defer")


def setup(app: Sphinx) -> None:
    """Add the directive and its files."""
    app.add_directive("filter-box", FilterBox)
    app.connect("html-page-context", add_script)
