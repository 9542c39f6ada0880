"""Section pages are numbered below their chapter, as their names are: 8.1, 8.2.

``numbered: 1`` in _toc.yml numbers chapters only. A greater depth would number
notebooks and the headings of chapters, too.
"""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from book._ext.chapters.chapter_map import SECTION


def names(env: BuildEnvironment) -> list[str]:
    """Return the section pages."""
    return [name for name in env.found_docs if SECTION.fullmatch(Path(name).name)]


def forget(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Take away an earlier build's numbers: sphinx_external_toc stumbles over them.

    It takes whatever has a number for a page of a numbered list, and counts on.
    """
    for name in names(env):
        for one in (env.titles[name], *env.tocs[name].findall(nodes.reference)):
            one.attributes.pop("secnumber", None)
    return []  # pages to be written again


def number(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Give each section page its number, in contents, titles and links."""
    for name in names(env):
        numbers = tuple(map(int, SECTION.fullmatch(Path(name).name).groups()))
        title, *headings = env.tocs[name].findall(nodes.reference)
        title["secnumber"] = env.titles[name]["secnumber"] = numbers
        none = {heading["anchorname"]: () for heading in headings}
        env.toc_secnumbers[name] = {"": numbers, **none}
    return []


def setup(app: Sphinx) -> None:
    """Number when Sphinx has numbered the chapters, which forgets all other numbers."""
    app.connect("env-get-updated", forget, priority=100)
    app.connect("env-get-updated", number, priority=900)
