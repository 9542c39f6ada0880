"""The site's own address, and the page that it shows."""

import pytest
from PIL import Image, ImageColor

from allranks.base.svg import LIGHT
from allranks.topics.arrivals import sums
from book._ext.site import share


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
    assert "rank 1 finished" in tab.locator(".x-report").text_content()
    links = tab.locator("article a[href]").evaluate_all("all => all.map(a => a.href)")
    assert len(links) > 20
    for link in links:
        path = link.removeprefix("file://").partition("#")[0].partition("?")[0]
        assert not link.startswith("file:") or (site / path).is_file(), link
    tab.locator("nav a", has_text="nn.DataParallel").first.click()
    assert tab.url.endswith("book/ch2_data_parallel.html") and not lost
    tab.close()


def test_the_front_pages_picture_shows_its_figure(site):
    """Each rank's bar ends where it comes to all_reduce, and then it waits."""
    path = site / "_static" / "share" / "book-intro.png"
    picture = Image.open(path).convert("RGB")
    for rank, at in enumerate(sums.FIRST):
        y = 352 + rank * 62 + 4
        works, waits = picture.getpixel((70 + at * 46 // 100, y)), "#f3c6c6"
        assert works == ImageColor.getrgb(LIGHT[rank])
        if at < max(sums.FIRST):
            after = picture.getpixel((90 + at * 46 // 100, y))
            assert after == ImageColor.getrgb(waits)
