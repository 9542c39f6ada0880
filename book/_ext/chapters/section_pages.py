"""Section pages are numbered below their chapter, as their names are: 8.1, 8.2.

``numbered: 1`` in _toc.yml numbers chapters only. A greater depth would number
notebooks and the headings of chapters, too.
"""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from book._ext.chapters.chapter_map import SECTION


def number(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Give each section page its number, in contents, titles and links."""
    for name in env.found_docs:
        if match := SECTION.fullmatch(Path(name).name):
            numbers = tuple(map(int, match.groups()))
            title, *headings = env.tocs[name].findall(nodes.reference)
            # A list, since the next build's table of contents writes into it.
            title["secnumber"] = env.titles[name]["secnumber"] = [*numbers]
            none = {heading["anchorname"]: () for heading in headings}
            env.toc_secnumbers[name] = {"": numbers, **none}
    return []  # pages to be written again


def setup(app: Sphinx) -> None:
    """Number when Sphinx has numbered the chapters, which forgets all other numbers."""
    app.connect("env-get-updated", number, priority=900)
