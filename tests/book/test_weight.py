"""A page is light: what a browser has to fetch for it, compressed."""

import pytest

from tests.book.weight import KIB, packed, too_heavy, weigh


@pytest.mark.parametrize("kind", ["intro", "ch", "app", "notebooks"])
def test_the_heaviest_page_of_each_kind_is_light(browser, site, pages, kind):
    """As browsers get it, compressed, in few files. ``make bench`` weighs all pages."""
    prefix = "notebooks/" if kind == "notebooks" else f"book/{kind}"
    same = [page for page in pages if page.startswith(prefix)]
    page = max(same, key=lambda page: packed(site / f"{page}.html"))
    files = weigh(browser, site, page)
    assert {f"{page}.html", "_static/all.css", "_static/all.js"} <= files.keys()
    assert sum(files.values()) > 30 * KIB  # it weighed something
    assert not too_heavy(page, sum(files.values()), len(files)), files


def test_a_page_that_is_too_heavy_is_named_with_its_figure():
    """Above 90 KiB of prose, 120 of a notebook, or 20 files."""
    assert not too_heavy("book/a", 90 * KIB, 20)
    assert not too_heavy("notebooks/a", 120 * KIB, 20)
    assert too_heavy("book/a", 91 * KIB, 1) == "book/a weighs 91.0 KiB, more than 90"
    assert "121.0 KiB, more than 120" in too_heavy("notebooks/a", 121 * KIB, 1)
    assert too_heavy("book/a", KIB, 21) == "book/a loads 21 files, more than 20"
