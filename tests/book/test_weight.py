"""Pages are light: a browser has to fetch little for them, compressed."""

import re

import pytest

from tests.book.weight import KIB, packed, too_heavy, weigh

FILE = re.compile(r'(?:src|href)="(?:\.\./)*(_static/[^"?]+\.(?:js|css))')


def named(site, page: str) -> int:
    """Return the compressed size of a page with the scripts and styles it names."""
    path = site / f"{page}.html"
    files = {*FILE.findall(path.read_text("utf8"))}
    return sum(map(packed, [path, *(site / name for name in files)]))


@pytest.mark.parametrize("kind", ["intro", "ch", "app", "notebooks"])
def test_the_heaviest_page_of_each_kind_is_light(browser, site, pages, kind):
    """The heaviest page of each kind keeps its limits; make bench weighs all pages."""
    prefix = "notebooks/" if kind == "notebooks" else f"book/{kind}"
    same = [page for page in pages if page.startswith(prefix)]
    page = max(same, key=lambda page: named(site, page))
    files = weigh(browser, site, page)
    assert {f"{page}.html", "_static/all.css", "_static/all.js"} <= files.keys()
    assert sum(files.values()) > 30 * KIB  # less would mean that files were missed
    assert not too_heavy(page, sum(files.values()), len(files)), files


def test_a_page_that_is_too_heavy_is_named_with_its_figure():
    """The limits are 90 KiB for a page, 120 for a notebook, and 20 files."""
    assert not too_heavy("book/a", 90 * KIB, 20)
    assert not too_heavy("notebooks/a", 120 * KIB, 20)
    assert too_heavy("book/a", 91 * KIB, 1) == "book/a weighs 91.0 KiB, more than 90"
    assert "121.0 KiB, more than 120" in too_heavy("notebooks/a", 121 * KIB, 1)
    assert too_heavy("book/a", KIB, 21) == "book/a loads 21 files, more than 20"
