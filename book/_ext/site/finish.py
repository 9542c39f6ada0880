"""The last step of an HTML build: what the theme offers no option for."""

import re
from html import escape
from pathlib import Path
from textwrap import shorten

from docutils import nodes
from sphinx.application import Sphinx

# Runs before the first paint, so that nothing flashes: it sets the mode that the reader
# chose, or that of the system.
THEME = """<script>
(() => {
  const page = document.documentElement.dataset;
  page.mode = localStorage.getItem("mode") || "auto";
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  page.theme = page.mode === "auto" ? dark : page.mode;
})();
</script>"""

# What the theme writes, and what it should write. Most make one axe rule pass.
FIXES = [
    (  # summary-name: the sidebar's arrow has no text
        re.compile(r"<summary>(?=<span class=\"toctree-toggle\")"),
        '<summary aria-label="Show or hide the pages below">',
    ),
    (  # label-content-name-mismatch: the visible text is "Search Ctrl+K"
        re.compile(
            r'(<button class="btn search-button-field[^>]*?) title="Search" '
            r'aria-label="Search"'
        ),
        r"\1",
    ),
    (  # the theme chooses late: pages flash, and have no colours without a script
        re.compile(r'<script data-cfasync="false">.*?</script>', re.DOTALL),
        THEME,
    ),
    (re.compile(r'(<html\b[^>]*) data-theme="auto"'), r'\1 data-theme="light"'),
    (  # the theme writes this line, although Sphinx writes it too
        re.compile(
            r'\s*<meta name="viewport" content="width=device-width, initial-scale=1" ?'
            r"/>"
        ),
        "",
    ),
    (  # title and contents again, for paper; not needed, book.css prints the page
        re.compile(
            r'<div id="jb-print-docs-body".*?(?=<div id="searchbox"></div>)', re.DOTALL
        ),
        "",
    ),
    (  # empty-table-header: the corner above the row headings
        re.compile(r'<th class="head"><p></p></th>'),
        "<td></td>",
    ),
    (  # indentation of tags, which nobody sees; not in code, where it is the code's
        re.compile(
            r"(<(pre|textarea|script)\b.*?</\2>)|\n\s+(?=<)",
            re.DOTALL,
        ),
        lambda found: found[1] or "\n",
    ),
    (  # names, brackets and blanks in code have the colour of its text anyway
        re.compile(r'<span class="[npw]">([^<]*)</span>'),
        r"\1",
    ),
    (  # region: the book's name is outside every landmark
        re.compile(r'<div class="sidebar-primary-item">(?=\s*<a class="navbar-brand)'),
        '<div class="sidebar-primary-item" role="navigation" aria-label="Front page">',
    ),
]

# The clinic has as many pages as all the rest. Only its own pages list them in the
# sidebar; all other pages link only to the first one, which keeps them light.
CLINIC = re.compile(
    r'(<a class="reference internal" href="[^"#]*\bapp_clinic\.html">[^<]*</a>)'
    r"<details>.*?</details>",
    re.DOTALL,
)


def describe(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Add a description for search engines: the page's first sentences."""
    metatags = context.get("metatags", "")
    if 'name="description"' in metatags:
        return
    first = next(iter(doctree.findall(nodes.paragraph)), None) if doctree else None
    text = first.astext() if first else f"{context.get('title', '')}: All Ranks"
    text = escape(shorten(text, 160, placeholder=" …"))
    context["metatags"] = f'{metatags}\n<meta content="{text}" name="description" />'


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Correct what the theme wrote on every page."""
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for page in out.rglob("*.html"):
        old = new = page.read_text("utf8")
        for pattern, replacement in FIXES:
            new = pattern.sub(replacement, new)
        if not page.name.startswith("app_clinic"):
            new = CLINIC.sub(r"\1", new)
        if new != old:
            page.write_text(new, "utf8")


def setup(app: Sphinx) -> None:
    """Register both steps; the second runs after most others, at the build's end."""
    app.connect("html-page-context", describe)
    app.connect("build-finished", finish, priority=900)
