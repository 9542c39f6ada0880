"""What each page weighs when a browser loads it, compressed as servers send it."""

import yaml
from playwright.sync_api import sync_playwright

from allranks.base.paths import ROOT
from book._tools import pdf
from tests.book.conftest import FLAGS, toc_pages
from tests.book.weight import AIMS, KIB, MOST_FILES, too_heavy, weigh

SITE = ROOT / "_build" / "html"


def run() -> dict:
    """Load every page of the built book; return its number of files and their bytes."""
    if not (SITE / "index.html").is_file():
        raise SystemExit("there is no book to weigh: make book builds it")
    pages = toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text("utf8")))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=pdf.chromium(), args=FLAGS)
        loaded = {page: weigh(browser, SITE, page) for page in pages}
        browser.close()
    return {
        page: {"bytes": sum(files.values()), "files": len(files)}
        for page, files in loaded.items()
    }


def refusal(found: dict) -> str:
    """Say which pages are too heavy, or return "" if none is."""
    said = [too_heavy(page, one["bytes"], one["files"]) for page, one in found.items()]
    return "\n".join(filter(None, said))


def report(found: dict) -> str:
    """Return the heaviest pages of each folder as text, beside their limit."""
    lines = []
    for folder, aim in AIMS.items():
        pages = [page for page in found if page.startswith(f"{folder}/")]
        pages.sort(key=lambda page: -found[page]["bytes"])
        shown = [f"{page} {found[page]['bytes'] / KIB:.1f}" for page in pages[:3]]
        over = sum(found[page]["bytes"] > aim * KIB for page in pages)
        text = f"{len(pages)} pages, {over} above the aim of {aim} KiB, the heaviest:"
        lines.append(f"{folder}/: {text} {', '.join(shown)}")
    most = max(one["files"] for one in found.values())
    return "\n".join([*lines, f"at most {most} files a page (limit {MOST_FILES})"])
