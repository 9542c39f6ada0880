"""Rebuild after an edit of a style sheet or of one of our extensions.

Sphinx looks at pages only: edit ``book/_static/book.css`` or ``book/_ext/run.py``, and
it reports that nothing changed. Here the content of both folders becomes part of the
configuration, whose changes Sphinx does follow: style sheets rewrite the HTML,
extensions re-read the pages.
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


def setup(app) -> dict:
    """Add one configuration value per folder."""
    app.add_config_value("static_digest", digest(BOOK / "_static"), "html", [str])
    app.add_config_value("extensions_digest", digest(BOOK / "_ext"), "env", [str])
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
