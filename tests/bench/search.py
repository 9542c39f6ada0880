"""How often the first place that the search finds answers, for a file of queries.

    python tests/bench search FILE

asks the built book in a browser, as a reader types, and names the queries it misses.
``tests/book/searching.py`` says what the file looks like.
"""

import json
from collections import defaultdict
from pathlib import Path

from playwright.sync_api import sync_playwright

from allranks.base.paths import ROOT
from book._tools import pdf
from tests.book.conftest import FLAGS
from tests.book.searching import FIRST, THREE, ask, missed, open_search, shares

SITE = ROOT / "_build" / "html"


def measure(path: Path) -> str:
    """Return the shares of a file of queries, in all and by kind, and its misses."""
    if not (SITE / "search.html").is_file():
        raise SystemExit("there is no book to search: make book builds it")
    queries = json.loads(path.read_text("utf8"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=pdf.chromium(), args=FLAGS)
        page = open_search(browser.new_page(), SITE.as_uri())
        found = ask(page, SITE.as_uri(), [query["query"] for query in queries])
        browser.close()
    return report(queries, found)


def report(queries: list[dict], found: dict[str, list[str]]) -> str:
    """Return the figures as text."""
    kinds = defaultdict(list)
    for query in queries:
        kinds[query["kind"]].append(query)
    lines = []
    for kind, some in [("all", queries), *kinds.items()]:
        first, three = shares(some, found)
        lines.append(f"{kind:8} {len(some):3}  first {first:4.0%}  three {three:4.0%}")
    lines[0] += f"  (at least {FIRST:.0%} and {THREE:.0%})"
    for query in missed(queries, found, 1):
        best = ", ".join(found[query["query"]][:3])
        lines.append(f"not first: {query['query'][:100]!r} -> {best}")
    return "\n".join(lines)
