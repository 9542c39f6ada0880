"""Nobody scrolls more than six screens without a picture, or something to try."""

import pytest

from tests.book import deserts

# Pages in which one looks something up, and that nobody reads from top to bottom: lists
# of failures, terms, rows, checks; the plan of a course; the log of what was run; how
# to start a notebook, for each place where it can run.
LOOKED_UP = {"app_errata", "app_glossary", "app_guard", "app_course"}
LOOKED_UP |= {"app_status", "app_where"}
READ = {"app_clinic_hangs", "app_clinic_invariants"}  # of the clinic's pages
COUNTED = "<svg width='300' height='100'><rect width='9' height='9'/></svg>"
NOT = (
    "<table><tr><td>a table</td></tr></table>",
    "<pre>a terminal</pre>",
    f"<details><summary>folded</summary>{COUNTED}</details>",
    "<svg width='20' height='20'></svg>",
    f"<div class='quiz'>{COUNTED}</div>",
)


def looked_up(page: str) -> bool:
    """Tell whether a page is not read from top to bottom."""
    name = page.rpartition("/")[2]
    listed = name in LOOKED_UP or name.startswith("app_clinic_")
    return page.startswith("book/") and listed and name not in READ


def test_most_pages_are_read(pages):
    """Of these, the visits of ``tests/book/test_pages.py`` measure each."""
    assert sum(not looked_up(page) for page in pages) > 25


@pytest.fixture
def gaps(browser, tmp_path):
    """Return a function that measures a page with something 10 screens down."""

    def measure(part: str) -> list[float]:
        high = f"<div style='height:{10 * deserts.SCREEN}px'></div>"
        page = f"<article style='margin:0'><h1>T</h1>{high}{part}{high}</article>"
        (tmp_path / "page.html").write_text(f"<body style='margin:0'>{page}")
        found = deserts.measure(browser, tmp_path, ["page"])
        return [round(size) for size, *_ in found["page"]["gaps"]]

    return measure


def test_a_picture_ends_a_desert(gaps):
    assert gaps(COUNTED) == [10, 10]
    assert gaps(f"<p class='x-of'>{COUNTED}</p>") == [10, 10]


@pytest.mark.parametrize("part", NOT)
def test_what_is_no_picture_does_not(gaps, part):
    assert gaps(part) == [20]
