"""Leave out of the site what the themes bring and no page loads.

Sphinx copies all of their files: 7 MB of icons, fonts, styles, translations and maps of
minified scripts, for which ``theme.css`` and ``book/_templates`` stand in. They are
named here, so that a file of ours can never go with them; a test says what else a newer
theme brings.
"""

import shutil
from pathlib import Path

from sphinx.application import Sphinx

UNUSED = (
    "locales",  # translations, which templates apply while building
    "styles",  # of the theme: theme.css stands in
    "vendor",  # FontAwesome's fonts; theme.css draws the eleven icons
    "scripts/bootstrap*",
    "scripts/fontawesome*",
    "scripts/*.map",
    "images",  # logos of buttons that _config.yml leaves out
    "*webpack-macros.html",  # templates
    "mystnb.*.css",
    "sphinx-design.min.css",
    "design-tabs.js",
    "copybutton.css",
    "copybutton_funcs.js",  # copybutton.js has them inside
    "check-solid.svg",
    "copy-button.svg",
    "doctools.js",
    "sphinx_highlight.js",
    "searchtools.js",  # of Sphinx's own search
    "language_data.js",
    "basic.css",
    "minus.png",
    "plus.png",
    "file.png",
)


def remove(app: Sphinx, exception: Exception | None) -> None:
    """Remove what no page loads."""
    if exception or app.builder.name != "html":
        return
    static = Path(app.outdir, "_static")
    for path in {path for pattern in UNUSED for path in static.glob(pattern)}:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def setup(app: Sphinx) -> None:
    """Remove it when all pages are written."""
    app.connect("build-finished", remove)
