"""The last step of an HTML build: what the theme offers no option for."""

import re
from html import escape
from pathlib import Path
from textwrap import shorten

from docutils import nodes
from sphinx.application import Sphinx

# Before the first paint, so that nothing flashes: what the reader chose, or the system.
THEME = """<script>
(() => {
  const page = document.documentElement.dataset;
  page.mode = localStorage.getItem("mode") || "auto";
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  page.theme = page.mode === "auto" ? dark : page.mode;
})();
</script>"""

# What the theme writes, and what it should write. Each makes one axe rule pass.
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
    (  # the theme chooses late: its page flashes, and shows no colours without a script
        re.compile(r'<script data-cfasync="false">.*?</script>', re.DOTALL),
        THEME,
    ),
    (re.compile(r'(<html\b[^>]*) data-theme="auto"'), r'\1 data-theme="light"'),
    (  # the theme writes this line, and Sphinx writes it too
        re.compile(
            r'\s*<meta name="viewport" content="width=device-width, initial-scale=1" ?'
            r"/>"
        ),
        "",
    ),
    (  # the page's title and contents once more, for paper: book.css prints the page
        re.compile(
            r'<div id="jb-print-docs-body".*?(?=<div id="searchbox"></div>)', re.DOTALL
        ),
        "",
    ),
    (  # empty-table-header: the corner above the heads of rows
        re.compile(r'<th class="head"><p></p></th>'),
        "<td></td>",
    ),
    (  # region: the book's name stands outside of every landmark
        re.compile(r'<div class="sidebar-primary-item">(?=\s*<a class="navbar-brand)'),
        '<div class="sidebar-primary-item" role="navigation" aria-label="Front page">',
    ),
]

# The clinic has as many pages as all the rest. Its own list them in the sidebar; the
# others link its first one, and stay light.
CLINIC = re.compile(
    r'(<a class="reference internal" href="[^"#]*\bapp_clinic\.html">[^<]*</a>)'
    r"<details>.*?</details>",
    re.DOTALL,
)


def describe(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Describe a page by its first sentences, for search engines."""
    metatags = context.get("metatags", "")
    if 'name="description"' in metatags:
        return
    first = next(iter(doctree.findall(nodes.paragraph)), None) if doctree else None
    text = first.astext() if first else f"{context.get('title', '')}: All Ranks"
    text = escape(shorten(text, 160, placeholder=" …"))
    context["metatags"] = f'{metatags}\n<meta content="{text}" name="description" />'


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Mend every page."""
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
    """Run last."""
    app.connect("html-page-context", describe)
    app.connect("build-finished", finish, priority=900)
