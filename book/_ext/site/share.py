"""What a link to a page shows elsewhere, and the page at the site's own address.

sphinxext-opengraph writes the description and draws the picture that chats and search
engines show beside a link. Both need the site's address, which is that of GitHub Pages
where the repository is known (see ``links.py``).
"""

from pathlib import Path
from urllib.parse import urlsplit

from sphinx.application import Sphinx
from sphinx.config import Config

FRONT = "book/intro.html"


def base_of(repository: str) -> str:
    """Return the address at which GitHub Pages serves a repository.

    >>> base_of("https://github.com/owner/name")
    'https://owner.github.io/name/'
    """
    owner, _, name = urlsplit(repository).path.strip("/").partition("/")
    host = f"https://{owner}.github.io/"
    return host if name == f"{owner}.github.io" else f"{host}{name}/"


def set_address(app: Sphinx, config: Config) -> None:
    """Tell sphinxext-opengraph where the site will be."""
    if config.allranks_repository:
        config.ogp_site_url = base_of(config.allranks_repository[0])


def front(app: Sphinx, exception: Exception | None) -> None:
    """Write ``index.html``: the front page itself instead of a redirect to it."""
    source = Path(app.outdir, FRONT)
    if exception or app.builder.name != "html" or not source.is_file():
        return
    base = f'<base href="{FRONT}"><link rel="canonical" href="{FRONT}">'
    html = source.read_text("utf8").replace("<head>", f"<head>\n{base}", 1)
    Path(app.outdir, "index.html").write_text(html, "utf8")


def setup(app: Sphinx) -> None:
    """Register both; the second runs after all else, at the build's end."""
    app.connect("config-inited", set_address)
    app.connect("build-finished", front, priority=1000)
