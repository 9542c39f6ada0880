"""Weigh a page as a browser gets it: all that it loads, compressed by the server.

A test weighs the heaviest page of each kind, ``python tests/bench pages`` all of them.
"""

import gzip
from pathlib import Path
from urllib.parse import unquote, urlsplit

from playwright.sync_api import Browser

KIB = 1024
AIMS = {"book": 90, "notebooks": 120}  # KiB, by the folder of a page's source
MOST = 2  # times the aim, beyond which the tests refuse a page
MOST_FILES = 20
TEXT = {".html", ".css", ".js", ".svg"}  # servers compress these; pictures already are
LEVEL = 6  # the default of gzip and of most servers


def packed(path: Path) -> int:
    """Return the number of bytes in which a server sends a file."""
    data = path.read_bytes()
    return len(gzip.compress(data, LEVEL) if path.suffix in TEXT else data)


def weigh(browser: Browser, site: Path, page: str) -> dict[str, int]:
    """Load a page such as ``book/ch5_ddp``; return the bytes of each file it loads."""
    files, context = set(), browser.new_context()  # a new context has an empty cache
    tab = context.new_page()
    tab.on("request", lambda request: files.add(unquote(urlsplit(request.url).path)))
    tab.goto(f"{site.as_uri()}/{page}.html")  # returns when all is loaded
    context.close()
    paths = [path for path in map(Path, files) if path.is_relative_to(site)]
    return {path.relative_to(site).as_posix(): packed(path) for path in paths}


def too_heavy(page: str, size: int, num_files: int) -> str:
    """Say by how much a page exceeds what is refused, or return "" if it does not.

    The aim itself is no gate: a page's weight moves by some KiB with its recorded runs.
    """
    limit = MOST * AIMS[page.partition("/")[0]]
    if size > limit * KIB:
        return f"{page} weighs {size / KIB:.1f} KiB, more than {limit}"
    if num_files > MOST_FILES:
        return f"{page} loads {num_files} files, more than {MOST_FILES}"
    return ""
