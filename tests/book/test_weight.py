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
    """It has less than twice what is aimed at, which make bench reports."""
    prefix = "notebooks/" if kind == "notebooks" else f"book/{kind}"
    same = [page for page in pages if page.startswith(prefix)]
    page = max(same, key=lambda page: named(site, page))
    files = weigh(browser, site, page)
    assert {f"{page}.html", "_static/theme.css", "_static/book.js"} <= files.keys()
    assert sum(files.values()) > 30 * KIB  # less would mean that files were missed
    assert not too_heavy(page, sum(files.values()), len(files)), files


def test_a_page_that_is_too_heavy_is_named_with_its_figure():
    """Refused is twice the aim of 90 KiB for a page and 120 for a notebook."""
    assert not too_heavy("book/a", 180 * KIB, 20)
    assert not too_heavy("notebooks/a", 240 * KIB, 20)
    assert too_heavy("book/a", 181 * KIB, 1) == "book/a weighs 181.0 KiB, more than 180"
    assert "241.0 KiB, more than 240" in too_heavy("notebooks/a", 241 * KIB, 1)
    assert too_heavy("book/a", KIB, 21) == "book/a loads 21 files, more than 20"
