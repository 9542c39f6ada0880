"""What a link to a page shows elsewhere, and the page at the site's own address."""

import re

import pytest
from bs4 import BeautifulSoup

from book._ext.site import share


def test_each_page_names_its_picture(site, pages):
    """Title, description and picture are there; the picture is the page's own."""
    seen = set()
    for page in pages:
        tree = BeautifulSoup((site / f"{page}.html").read_text("utf8"), "html.parser")
        tags = {
            one["property"]: one["content"]
            for one in tree.select("head meta[property^=og]")
        }
        heading = tree.select_one("article h1").get_text().removesuffix("#")
        assert re.sub(r"^\d+\. ", "", heading) == tags["og:title"], page
        assert len(tags["og:description"]) > 40 and tags["og:type"] == "article"
        if tags["og:image"].startswith("https://"):
            path = site / "_static" / tags["og:image"].partition("/_static/")[2]
        else:  # nothing says where this copy of the book will be
            path = (site / page).parent / tags["og:image"]
        data = path.read_bytes()
        assert data[:4] == b"\x89PNG" and len(data) < 60_000
        assert tuple(int.from_bytes(data[i : i + 4], "big") for i in (16, 20)) == (
            1200,
            630,
        )
        seen.add(data)
        assert len(tree.select('meta[name="twitter:card"]')) == 1
    assert len(seen) == len(pages)


@pytest.mark.parametrize(
    ("repository", "base"),
    [
        ("https://github.com/owner/name", "https://owner.github.io/name/"),
        ("https://github.com/me/me.github.io", "https://me.github.io/"),
    ],
)
def test_the_address_of_the_site_follows_from_the_repository(repository, base):
    """GitHub Pages serves a project below its owner's name."""
    assert share.base_of(repository) == base


def test_the_front_page_is_a_page(browser, site):
    """``index.html`` shows the intro, loads all it needs, and its links lead on."""
    tab = browser.new_page()
    lost = []
    tab.on("requestfailed", lambda request: lost.append(request.url))
    tab.on("pageerror", lambda error: lost.append(str(error)))
    tab.goto((site / "index.html").as_uri())
    assert tab.url.endswith("index.html") and tab.locator("h1").count() == 1
    tab.get_by_role("button", name="Take rank 1 away").click()
    assert "rank 1 finished" in tab.locator(".x-report").inner_text()
    links = tab.locator("article a[href]").evaluate_all("all => all.map(a => a.href)")
    assert len(links) > 20
    for link in links:
        path = link.removeprefix("file://").partition("#")[0].partition("?")[0]
        assert not link.startswith("file:") or (site / path).is_file(), link
    tab.locator("nav a", has_text="nn.DataParallel").first.click()
    assert tab.url.endswith("book/ch2_data_parallel.html") and not lost
    tab.close()
