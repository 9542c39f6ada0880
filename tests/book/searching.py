"""Ask the book's search in a real browser, and count how often it answers at once.

A file of queries is a list of ``{"query", "kind", "wanted"}``; ``wanted`` has every
section that answers, such as ``book/ch5_ddp.html#is-it-worth-it``.
"""

from collections.abc import Iterable
from urllib.parse import unquote

from playwright.sync_api import Page

FIRST, THREE = 0.85, 0.97  # the least share of first hits, and of the first three
TYPE = """
(queries) => {
  const field = document.querySelector("article form.bd-search input");
  const links = () => document.querySelectorAll("#search-results .search-hit");
  return queries.map((query) => {
    field.value = query;
    field.dispatchEvent(new Event("input"));
    return [...links()].map((a) => a.href);
  });
}
"""


def open_search(page: Page, base: str) -> Page:
    """Open the search's page, and wait until it can answer."""
    page.goto(f"{base}/search.html?q=rank")
    page.wait_for_selector("#search-results a")
    return page


def ask(page: Page, base: str, queries: Iterable[str]) -> dict[str, list[str]]:
    """Type each query into the field, and return the places that it finds, in order."""
    queries = list(dict.fromkeys(queries))
    found = page.evaluate(TYPE, queries)
    places = [[unquote(link.removeprefix(f"{base}/")) for link in f] for f in found]
    return dict(zip(queries, places, strict=True))


def missed(queries: list[dict], found: dict[str, list[str]], most: int) -> list[dict]:
    """Return the queries without an answer in the first ``most`` places."""
    return [q for q in queries if not set(q["wanted"]) & set(found[q["query"]][:most])]


def shares(queries: list[dict], found: dict[str, list[str]]) -> tuple[float, float]:
    """Return the share that is answered by the first place, and by the first three."""
    first, three = (1 - len(missed(queries, found, n)) / len(queries) for n in (1, 3))
    return first, three
