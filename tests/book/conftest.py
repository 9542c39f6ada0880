"""Build the site if needed, serve it, and open it in a real browser."""

import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from allranks.base.paths import ROOT
from book._tools.browser import MISSING, find

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=InitialWebUI,WebUIReloadButton",  # a quarter of Chromium's time
    # Workers keep all cores busy, so threads that run ahead only cost time.
    "--js-flags=--single-threaded",
    "--num-raster-threads=1",
    "--in-process-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no page needs more
]


def toc_pages(entry: dict) -> list[str]:
    """Return the pages of a table of contents, in order."""
    found = [entry[key] for key in ("root", "file") if key in entry]
    for key in ("parts", "chapters", "sections"):
        for below in entry.get(key, ()):
            found += toc_pages(below)
    return found


@pytest.fixture(scope="session")
def pages() -> list[str]:
    """Return the pages of the book's table of contents: ``book/intro``, …"""
    return toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text("utf8")))


@pytest.fixture(scope="session")
def site() -> Path:
    """Return the built book, and build it first if it is older than its sources."""
    html = ROOT / "_build" / "html"
    names = "book", "notebooks", "scripts", "errata", "exercises", "clinic", "allranks"
    folders = [ROOT / name for name in names]
    sources = [p for f in folders for p in f.rglob("*") if "__pycache__" not in p.parts]
    sources += [ROOT / "_config.yml", ROOT / "_toc.yml"]
    newest = max(path.stat().st_mtime for path in sources if path.is_file())
    index = html / "book" / "intro.html"
    stamp = html / ".built"
    built = stamp if stamp.exists() else index
    if not built.exists() or built.stat().st_mtime < newest:
        jupyter_book = Path(sys.executable).with_name("jupyter-book")
        command = [jupyter_book, "build", ".", "-W", "-n", "--keep-going", "-q"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(ROOT / "_build")  # or Sphinx wouldn't repeat its warnings
            pytest.fail(f"the book does not build:\n{done.stderr}", pytrace=False)
        stamp.touch()
    return html


@pytest.fixture(scope="session")
def http(site):
    """Yield the site's address on a local server."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def served(http) -> str:
    """Return the address of a small file on the server, which has its storage."""
    return f"{http}/_static/quiz.css"


def chromium():
    """Yield Chromium; without it, skip the test (CI does not even begin)."""
    from playwright.sync_api import sync_playwright

    if not (path := find()):
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


# One browser per module, as its event loop must not meet those of other tests.
browser = pytest.fixture(scope="module")(chromium)


@pytest.fixture(scope="module")
def empty_tab(browser, tmp_path_factory):
    """Yield a function that returns the one tab of a file's tests, with nothing in it.

    A new tab would compile all scripts of a page again.
    """
    path = tmp_path_factory.mktemp("nothing") / "nothing.html"
    path.write_text("<!DOCTYPE html><title>nothing</title>", "utf8")
    tab = browser.new_context().new_page()

    def empty(width: int, height: int, at: str = path.as_uri(), **media: str):
        """Return the tab; ``at`` is any page whose storage is to be emptied."""
        tab.goto(at)  # by itself, a file as the book's pages are: it has their storage
        tab.mouse.move(0, 0)
        tab.set_viewport_size({"width": width, "height": height})
        given = {"media": "null", "reduced_motion": "null", "color_scheme": "light"}
        tab.emulate_media(**given | media)
        tab.evaluate("localStorage.clear(); sessionStorage.clear()")
        return tab

    yield empty
    tab.context.close()
