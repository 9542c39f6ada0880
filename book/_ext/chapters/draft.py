"""A page whose name begins with ``draft_`` says below its title that it is a draft.

It owes less than a chapter: a page, a script and a test. The map and the course sheet
leave it out (chapter_map.py).
"""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from book._ext.chapters.chapter_map import DRAFT

WORDS = "This page is a draft: what it says was run, but it may change or go."


def mark(app: Sphinx, doctree: nodes.document) -> None:
    """Put a box below the title of a draft."""
    if Path(app.env.docname).name.startswith(DRAFT):
        title = next(iter(doctree.findall(nodes.title)))
        box = nodes.warning("", nodes.paragraph("", WORDS))
        title.parent.insert(title.parent.index(title) + 1, box)


def setup(app: Sphinx) -> None:
    """Look at each page as it is read."""
    app.connect("doctree-read", mark)
