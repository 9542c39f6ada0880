"""What a page says about itself in its front matter, so that no list has to name it.

Besides Sphinx's own ``myst``, a page may have these fields, each of which is read by
the part that needs it, from all pages:

    glossary: {mesh (设备网格): The ranks arranged in rows and columns.}
    said: {why-is-it-slow: words under which readers look for this section; others}
    course: {for: those who wait for data, day: 2}    the third is its place in a plan
    least_ranks: {ch5_async: 2}                       scripts that one rank can't run
"""

from pathlib import Path

import yaml

FENCE = "---\n"


def front(page: Path) -> dict:
    """Return a page's front matter; it is empty if the page has none."""
    text = page.read_text("utf8")
    if not text.startswith(FENCE):
        return {}
    return yaml.load(text.split(f"\n{FENCE}", 1)[0], yaml.CSafeLoader) or {}


def fronts(root: Path, field: str) -> dict[str, dict]:
    """Return a field of all pages that have it, by the pages' names."""
    pages = {path.stem: front(path) for path in sorted(root.glob("book/*.md"))}
    return {name: page[field] for name, page in pages.items() if field in page}
