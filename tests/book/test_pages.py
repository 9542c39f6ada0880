"""Every page in a real browser is quiet, fits its window and is accessible.

A page is loaded four times: from a server or a folder, light or dark, on a phone or a
laptop. Four visits cover every pair of two of these choices. During the first, axe-core
checks the page, and during the second what a wide window has around the article. The
last is for all that needs one visit only: deserts, and drawings that do not fit.
"""

import pytest
import yaml

from allranks.base.paths import ROOT
from tests.book import deserts
from tests.book.axe import Axe
from tests.book.conftest import toc_pages
from tests.book.test_deserts import looked_up
from tests.book.test_fit import cut_or_too_small
from tests.book.visits import Visitor
from tests.book.weight import MOST_FILES

PAGES = toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text("utf8")))
VISITS = [
    ("http", "light", "phone"),
    ("http", "dark", "laptop"),
    ("file", "dark", "phone"),
    ("file", "light", "laptop"),
]


@pytest.fixture(scope="module")
def visitors(browser, site, http) -> list[Visitor]:
    """Yield a reader for each kind of visit."""
    bases = {"http": http, "file": site.as_uri()}
    visitors = [Visitor(browser, bases[kind], *rest) for kind, *rest in VISITS]
    yield visitors
    for visitor in visitors:
        visitor.close()


@pytest.fixture(scope="module")
def axe():
    """Yield axe-core, and check in the end that it has measured something."""
    axe = Axe()
    yield axe
    assert axe.measured > 20 or not axe.looks


@pytest.mark.replay("{name}.html")
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_quiet_fits_and_is_for_everybody(visitors, axe, site, name):
    """A page asks for its own files only, and nothing complains, sticks out or jumps.

    Code can be copied, and axe-core finds nothing. No drawing, table or code leaves its
    column, and no letter its drawing, in whatever window. Nobody who reads it scrolls
    more than six screens of a laptop without a picture, with all folds closed.
    """
    problems = []
    for number, visitor in enumerate(visitors):
        look = visitor.open(f"{name}.html")
        assert look["theme"] == visitor.theme
        found = [*visitor.complaints]
        if look["buttons"] != look["blocks"]:
            found.append(f"{look['blocks']} blocks, {look['buttons']} copy buttons")
        if look["moved"] > 0.02:
            found.append(f"the layout shifted by {look['moved']:.3f}")
        if not 3 <= len(visitor.asked) <= MOST_FILES:  # itself, its style, its script
            found.append(f"{len(visitor.asked)} requests: {sorted(visitor.asked)}")
        visitor.stop_motion()
        if number < 2:
            found += axe.look(visitor.page, again=number == 1)
        if number == 3:
            drawn = visitor.page.locator("article :is(svg, table)").count()
            assert drawn or "<table" not in (site / f"{name}.html").read_text("utf8")
            found += cut_or_too_small(visitor.page)
            if look["gaps"][0][0] > deserts.MOST and not looked_up(name):
                found.append(deserts.table({name: look}, most=3))
        problems += [f"{visitor.theme}, {visitor.width}: {text}" for text in found]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("number", range(4), ids=["-".join(visit) for visit in VISITS])
def test_search_finds_a_page(visitors, axe, number):
    """Search works with and without a server, and is accessible."""
    visitor = visitors[number]
    visitor.open("search.html?q=rank")
    visitor.page.wait_for_selector("#search-results a.search-hit")
    visitor.stop_motion()
    assert visitor.complaints == []
    if number < 2:
        assert axe.look(visitor.page) == []
