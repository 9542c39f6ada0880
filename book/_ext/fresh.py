"""Rebuild what an edit touches beyond its own page.

Sphinx looks at pages only: edit ``book/_static/book.css`` or ``book/_ext/run.py``, and
it reports that nothing changed. Here the content of both folders becomes part of the
configuration, whose changes Sphinx does follow: style sheets rewrite the HTML,
extensions re-read the pages. And a notebook that is executed anew re-reads the pages
that glue its results.
"""

import hashlib
from pathlib import Path

BOOK = Path(__file__).resolve().parents[1]


def digest(folder: Path) -> str:
    """A hash of every file below a folder."""
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            state.update(path.relative_to(folder).as_posix().encode())
            state.update(path.read_bytes())
    return state.hexdigest()


def gluing_pages(app, env, added, changed, removed) -> list[str]:
    """The pages that name a notebook which has changed."""
    notebooks = [f"{name}.ipynb" for name in added | changed]
    texts = {
        name: Path(env.doc2path(name)) for name in env.found_docs - added - changed
    }
    return [
        name
        for name, path in texts.items()
        if any(notebook in path.read_text("utf8") for notebook in notebooks)
    ]


def setup(app) -> dict:
    """Add one configuration value per folder, and look for pages that glue."""
    app.add_config_value("static_digest", digest(BOOK / "_static"), "html", [str])
    app.add_config_value("extensions_digest", digest(BOOK / "_ext"), "env", [str])
    app.connect("env-get-outdated", gluing_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
