"""The last step of an HTML build: what the theme offers no option for."""

import re
from pathlib import Path

STUB = "/* Icons come from web fonts; the theme's 1.5 MB script is left out. */\n"

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
    (  # region: the book's name stands outside of every landmark
        re.compile(r'<div class="sidebar-primary-item">(?=\s*<a class="navbar-brand)'),
        '<div class="sidebar-primary-item" role="navigation" aria-label="Front page">',
    ),
]


def finish(app, exception: Exception | None) -> None:
    """Stub the icon script and mend every page."""
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    icons = out / "_static" / "scripts" / "fontawesome.js"
    if icons.is_file():
        icons.write_text(STUB)
    for page in out.rglob("*.html"):
        old = new = page.read_text("utf8")
        for pattern, replacement in FIXES:
            new = pattern.sub(replacement, new)
        if new != old:
            page.write_text(new, "utf8")


def setup(app) -> dict:
    """Run last."""
    app.connect("build-finished", finish, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
