"""Search finds what readers look for: terms of the glossary, and error messages."""

import json
import re
from textwrap import shorten

from bs4 import BeautifulSoup

from allranks import clinic
from allranks.paths import ROOT

TERM = re.compile(r"^(\S.*)\n  \[([^]]+)\]\{\.language-zh\}", re.MULTILINE)
MESSAGE = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Warning): .+")
FIND = """
(queries) => queries.map((query) => {
  const found = Search._performSearch(...Search._parseQuery(query));
  return [...new Set(found.map((result) => result[0]))];
})
"""


def find(browser, base: str, queries: list[str]) -> dict[str, list[str]]:
    """Return the pages that the search finds for each query."""
    tab = browser.new_page()
    tab.goto(f"{base}/search.html?q=rank")
    tab.wait_for_selector("#search-results li a")
    found = tab.evaluate(FIND, queries)
    tab.close()
    return dict(zip(queries, found, strict=True))


def test_search_finds_the_terms_of_the_glossary(browser, http):
    """Each term is found in English and Chinese, also with spaces for _ and -."""
    terms = TERM.findall((ROOT / "book" / "app_glossary.md").read_text("utf8"))
    assert len(terms) > 100
    queries = [word.strip("`") for pair in terms for word in pair]
    queries += [re.sub("[-_]", " ", query) for query in queries]
    found = find(browser, http, list(dict.fromkeys(queries)))
    assert [q for q, pages in found.items() if "book/app_glossary" not in pages] == []


def test_search_finds_the_messages_that_pages_show(browser, http, site, pages):
    """A message is found as the page shows it, or by its first words if it is long."""
    shown: dict[str, set[str]] = {}

    def add(text: str, page: str) -> None:
        for message in MESSAGE.findall(text):
            shown.setdefault(shorten(message, 120, placeholder=""), set()).add(page)

    for page in pages:
        tree = BeautifulSoup((site / f"{page}.html").read_text("utf8"), "html.parser")
        for block in tree.select("article pre"):
            add(block.get_text(), page)
    outcomes = json.loads((ROOT / "errata" / "outcomes.json").read_text("utf8"))
    for ends in outcomes.values():
        for end in ends.values():
            add(end["text"], "book/app_errata")
    cases = {case.slug: case for case in clinic.folder(ROOT / "clinic")}
    outcomes = json.loads((ROOT / "clinic" / "outcomes.json").read_text("utf8"))
    for slug, ends in outcomes.items():
        page = clinic.CLASSES[cases[slug].fields["class"]]
        for cell in "broken", "fixed":
            add(ends[cell]["text"], f"book/{page}")
    assert len(shown) > 30
    found = find(browser, http, list(shown))
    assert {m: p for m, p in shown.items() if not p & set(found[m])} == {}
