"""Every page in a real browser: quiet, within its window, accessible, fully styled.

A page is loaded four times: on a server and from a folder, light and dark, on a phone
and on a laptop. Of these three, the four visits hold every pair once. During two of
them, one narrow and one wide, axe-core has a look, and at the last the style sheet.
"""

import pytest
import yaml

from allranks.paths import ROOT
from book._ext.weight.purge import purge
from book._ext.weight.uses import Uses
from tests.book.axe import Axe
from tests.book.conftest import toc_pages
from tests.book.styles import Styles
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
    """Yield axe-core, which must have seen something in the end."""
    axe = Axe()
    yield axe
    assert axe.measured > 20 or not axe.looks


@pytest.fixture(scope="module")
def styles(site) -> Styles:
    """Return the comparison with the whole style sheet."""
    return Styles(site)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_quiet_fits_and_is_for_everybody(visitors, axe, styles, name):
    """No request leaves, nothing complains, sticks out or jumps; code can be copied.

    axe-core finds nothing. Every element looks as with the themes' whole style sheets.
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
            found += axe.look(visitor.page)
        elif number == 3:
            found += styles.look(visitor.page)
        problems += [f"{visitor.theme}, {visitor.width}: {text}" for text in found]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("number", range(4), ids=["-".join(visit) for visit in VISITS])
def test_search_finds_a_page(visitors, axe, styles, number):
    """Search works without a server as well, and is for everybody."""
    visitor = visitors[number]
    visitor.open("search.html?q=rank")
    visitor.page.wait_for_selector("#search-results li a")
    visitor.stop_motion()
    assert visitor.complaints == []
    if number < 2:
        assert axe.look(visitor.page) == []
    elif number == 3:
        for page in "search", "genindex":  # results would still come and go
            visitor.page.goto(f"{visitor.base}/{page}.html")
            visitor.stop_motion()
            assert styles.look(visitor.page) == []


def test_most_rules_are_left_out(styles):
    """Otherwise the comparison above would have nothing to find."""
    assert styles.saving > 4
    assert {"class", "data-theme", "open"} <= set(styles.attributes)


def test_a_variable_that_only_a_pages_own_style_reads_is_kept():
    """A page may bring a style of its own, such as one in a notebook's output."""
    uses = Uses()
    uses.add_page("<style>svg .s0 { fill: var(--rank-6) }</style><p>x</p>")
    assert purge(":root { --rank-6: red; --idle: 1 }", uses) == ":root{--rank-6:red}"
