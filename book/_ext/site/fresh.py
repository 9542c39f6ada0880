"""Rebuild everything that an edit affects, not only the page that was edited.

Sphinx looks at pages only: if you edit ``book/_static/book.css`` or a module of
``book/_ext``, it reports that nothing changed. So the content of both folders becomes
part of the configuration, whose changes Sphinx does follow: when a style sheet changes,
it writes all pages again, and when a module changes, it reads them again. If a notebook
was executed again, the pages that glue its results are read again, too.
"""

import hashlib
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

BOOK = Path(__file__).resolve().parents[2]


def digest(folder: Path) -> str:
    """Hash every file below a folder."""
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            state.update(path.relative_to(folder).as_posix().encode())
            state.update(path.read_bytes())
    return state.hexdigest()


def gluing_pages(
    app: Sphinx,
    env: BuildEnvironment,
    added: set[str],
    changed: set[str],
    removed: set[str],
) -> list[str]:
    """List the pages that mention a notebook that has changed."""
    notebooks = [f"{name}.ipynb" for name in added | changed]
    texts = {
        name: Path(env.doc2path(name)) for name in env.found_docs - added - changed
    }
    return [
        name
        for name, path in texts.items()
        if any(notebook in path.read_text("utf8") for notebook in notebooks)
    ]


def setup(app: Sphinx) -> None:
    """Add one configuration value per folder, and have gluing pages read again."""
    app.add_config_value("static_digest", digest(BOOK / "_static"), "html", [str])
    app.add_config_value("extensions_digest", digest(BOOK / "_ext"), "env", [str])
    app.connect("env-get-outdated", gluing_pages)
