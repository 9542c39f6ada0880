"""Print a page of HTML as a PDF with the system's Chromium."""

import io
from pathlib import Path
from urllib.parse import unquote

from playwright.sync_api import sync_playwright
from pypdf import PdfReader

from book._tools.browser import MISSING, find

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu"]
WIDTH = 658  # CSS pixels of a line: A4 minus two margins of 18 mm
BEYOND = """
[...document.querySelectorAll(".doc *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1 ||
        // What is inside an SVG does not scroll, whatever the browser says.
        (!e.ownerSVGElement && e.clientWidth && e.scrollWidth > e.clientWidth + 1))
    .map(e => `${e.tagName} ${e.textContent.trim().slice(0, 60)}`)
"""


class Printer:
    """A browser that prints."""

    def __enter__(self) -> "Printer":
        """Start the browser."""
        self.playwright = sync_playwright().start()
        self.browser = self.playwright.chromium.launch(
            executable_path=chromium(), args=FLAGS
        )
        self.page = self.browser.new_page(viewport={"width": WIDTH, "height": 900})
        self.page.emulate_media(media="print")
        return self

    def __exit__(self, *error: object) -> None:
        """Close the browser."""
        self.browser.close()
        self.playwright.stop()

    def print(self, path: Path, draft: bool = False) -> bytes:
        """Return the PDF of a page, unless something on it is wider than the paper.

        A draft has neither bookmarks nor tags, so it says sooner where things are.
        """
        self.page.goto(path.as_uri())
        if wide := self.page.evaluate(BEYOND):
            raise SystemExit(f"cut at the right edge of the paper: {wide}")
        more = {} if draft else {"outline": True, "tagged": True}
        return self.page.pdf(prefer_css_page_size=True, **more)


def targets(pdf: bytes) -> dict[str, int]:
    """Return the page, counted from 1, of each heading that a link leads to."""
    reader = PdfReader(io.BytesIO(pdf))
    return {
        unquote(key.removeprefix("/")): reader.get_destination_page_number(place) + 1
        for key, place in reader.named_destinations.items()
    }


def chromium() -> str:
    """Return the path of the system's Chromium."""
    if not (found := find()):
        raise SystemExit(MISSING)
    return found
