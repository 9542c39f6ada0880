"""``{opening} ch5_ddp``: the picture that carries a chapter's idea, before any code.

The body is its caption. Each drawing is a module of ``allranks/openings``,
drawn twice: for a column, and for a phone. The style sheet shows the one that fits, and
a screen reader finds only that one, too.
"""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from allranks import openings
from allranks.base.svg import either

FOLDER = Path(openings.__file__).parent


class Opening(SphinxDirective):
    """A picture in the width of the page, with a caption."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Draw the picture in both widths."""
        name = self.arguments[0]
        for path in FOLDER.glob("*.py"):
            self.env.note_dependency(str(path))
        if not self.content:
            raise self.error(f"opening {name} needs a caption that says its idea")
        try:
            wide, narrow = (openings.opening(name, small) for small in (False, True))
        except LookupError as error:
            raise self.error(str(error)) from None
        drawings = either(wide, narrow)
        words, problems = self.parse_inline(" ".join(self.content))
        figure = nodes.figure("", nodes.raw("", drawings, format="html"))
        figure["classes"].append("opening")
        figure += nodes.caption("", "", *words)
        return [figure, *problems]


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_directive("opening", Opening)
