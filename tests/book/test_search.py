"""Search answers first: by section, while typing, without a server."""

import json
import re
from textwrap import shorten

import pytest
from bs4 import BeautifulSoup, SoupStrainer

from allranks import clinic
from allranks.base.paths import ROOT
from book._ext.chapters import terms
from book._ext.site import search
from book._ext.site.explorable import FIGURE as FIGURES
from tests.book.axe import Axe
from tests.book.searching import FIRST, THREE, ask, missed, open_search, shares

QUERIES = json.loads(
    (ROOT / "tests" / "book" / "queries.json").read_text(encoding="utf8")
)
GLOSSARY = terms.terms(ROOT)
MESSAGE = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Warning): .+")
PREFIX = "globalThis.allRanksIndex="
WITHOUT = """
([kind, queries]) => {
  const index = globalThis.allRanksIndex;
  const renamed = index.entries.map((row) => row.with(4, -1)); // parents have moved
  const { Search } = globalThis.allRanksSearch;
  const entries = renamed.filter((row) => row[2] !== kind);
  const search = new Search({ ...index, entries });
  return queries.map((query) => search.ask(query, 3).map(
    ({ page, anchor }) => `${page}.html#${anchor}`));
}
"""
PAGE, CASE, TERMS, FIGURE, NOTEBOOK = range(5)


@pytest.fixture(scope="module")
def page(browser, site):
    """Yield the search's page, opened from a folder."""
    tab = open_search(browser.new_page(), site.as_uri())
    yield tab
    tab.close()


@pytest.fixture(scope="module")
def index(site) -> dict:
    """Return the index that the browser loads."""
    text = (site / "_static" / search.INDEX).read_text("utf8")
    return json.loads(text.removeprefix(PREFIX))


def test_the_first_place_answers(page, site):
    """The section that a learner wants comes first, or among the first three.

    ``python tests/bench search tests/book/queries.json`` prints what it misses.
    """
    found = ask(page, site.as_uri(), [query["query"] for query in QUERIES])
    first, three = shares(QUERIES, found)
    assert first >= FIRST, missed(QUERIES, found, 1)
    assert three >= THREE, missed(QUERIES, found, 3)


@pytest.mark.parametrize("kind", [PAGE, CASE, TERMS], ids=["page", "case", "term"])
def test_an_index_without_a_kind_of_entry_would_be_noticed(page, kind):
    """The shares are too low for an index without sections, cases or terms."""
    texts = [query["query"] for query in QUERIES]
    found = dict(zip(texts, page.evaluate(WITHOUT, [kind, texts]), strict=True))
    first, three = shares(QUERIES, found)
    assert first < FIRST or three < THREE


def test_the_index_has_every_case_term_and_figure(index, site, pages):
    """Nothing is left out, and each place is on its page."""
    kinds = {kind: [r for r in index["entries"] if r[2] == kind] for kind in range(5)}
    cases = clinic.folder(ROOT / "clinic")
    assert {row[1] for row in kinds[CASE]} == {f"clinic-{case.slug}" for case in cases}
    assert all(row[5] for row in kinds[CASE])  # its cause
    assert len(kinds[TERMS]) >= len(GLOSSARY) > 100
    assert {index["pages"][row[0]] for row in index["entries"]} == set(pages)
    names, lost = set(), []
    for number, name in enumerate(index["pages"]):
        html = (site / f"{name}.html").read_text("utf8")
        ids = set(re.findall(r'\bid="([^"]+)"', html))
        rows = [row for row in index["entries"] if row[0] == number]
        lost += [row[:4] for row in rows if row[1] not in ids]
        if name.startswith("book/"):
            names |= set(FIGURES.findall(html))
    assert lost == []
    assert {row[3] for row in kinds[FIGURE]} == {search.spoken(n) for n in names}
    assert len(names) >= 7


def test_no_result_shows_the_name_of_a_label(index):
    """Labels such as ch4_ranks are for the book's sources; results show titles."""
    sources = (ROOT / "book").glob("*.md")
    named = re.compile(r"^\((\w+)\)=$", re.MULTILINE)
    labels = {
        name for path in sources for name in named.findall(path.read_text("utf8"))
    }
    assert {"ch4_ranks", "app_clinic"} <= labels
    shown = [
        (row[3], set(re.findall(r"(?<!/)\b\w+_\w+", row[5])) & labels)
        for row in index["entries"]
    ]
    assert [one for one in shown if one[1]] == []


def test_each_line_of_what_readers_say_is_about_a_place(index):
    """A page's ``said`` names places that exist."""
    pages = [name.removeprefix("book/") for name in index["pages"]]
    places = {f"{pages[row[0]]}#{row[1]}" for row in index["entries"]}
    assert len(search.said(ROOT)) > 200
    assert set(search.said(ROOT)) - places == set()


def test_the_index_is_small_and_waits_until_somebody_searches(browser, site):
    """At most 600 KiB, which a page loads only when its search opens."""
    assert (site / "_static" / search.INDEX).stat().st_size <= search.MOST == 614400
    assert not (site / "searchindex.js").exists()
    tab, asked = browser.new_page(), []
    tab.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    tab.goto(f"{site.as_uri()}/book/intro.html")
    assert search.INDEX not in asked and "search.js" not in asked
    tab.keyboard.press("Control+k")
    tab.wait_for_selector("#pst-search-dialog .search-said", state="attached")
    assert search.INDEX in asked
    tab.close()


def test_the_dialog_answers_while_typing(browser, site):
    """Arrow keys choose, Enter opens, Escape closes; a status says how many there are.

    On a phone it fits the window, and axe-core finds nothing.
    """
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    tab.goto(f"{site.as_uri()}/book/ch5_ddp.html")
    tab.keyboard.press("Control+k")
    tab.keyboard.type("only rank 0 calls the barr")
    dialog = tab.locator("#pst-search-dialog")
    first = dialog.locator(".search-hit").first
    first.wait_for()
    assert first.locator(".search-title").inner_text().startswith("Clinic: Only rank 0")
    assert first.locator("mark").count() >= 3
    assert (
        "a barrier returns" in first.locator(".search-text").first.inner_text().lower()
    )
    assert re.fullmatch(r"\d+ results", dialog.get_by_role("status").inner_text())
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    box = dialog.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    assert first.bounding_box()["height"] >= 44
    links = dialog.locator(".search-hit").evaluate_all("all => all.map((a) => a.href)")
    focused = "document.activeElement.href"
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate(focused) == links[1]
    tab.keyboard.press("ArrowUp")
    tab.keyboard.press("ArrowUp")
    assert tab.evaluate("document.activeElement.type") == "search"
    assert Axe().look(tab) == []
    tab.keyboard.press("Escape")
    assert not dialog.is_visible()
    tab.keyboard.press("Control+k")
    tab.keyboard.type("only rank 0 calls the barr")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/app_clinic_ddp.html#clinic-ddp-barrier-in-rank0")
    place = tab.locator("#clinic-ddp-barrier-in-rank0").bounding_box()
    assert 0 <= place["y"] < 844  # at once
    tab.close()


def test_who_finds_nothing_is_told_where_to_look(page, site):
    """One sentence leads to the box for logs and to the glossary."""
    assert ask(page, site.as_uri(), ["qqqqzzzz"]) == {"qqqqzzzz": []}
    said = page.locator(".search-nothing")
    assert said.inner_text().startswith("Nothing found for")
    links = said.locator("a").evaluate_all("all => all.map((a) => a.href)")
    for link in links:
        name, _, anchor = link.removeprefix(f"{site.as_uri()}/").partition("#")
        html = (site / name).read_text("utf8")
        assert not anchor or f'id="{anchor}"' in html
    assert len(links) == 2


def test_a_place_found_by_other_words_says_which(page, site):
    """A result shows the words that match, even if its title and text have others."""
    ask(page, site.as_uri(), ["training hangs at end of epoch"])
    marks = page.locator(".search-hit").first.locator("mark").all_inner_texts()
    assert {"hangs", "end", "epoch"} <= set(marks)


def test_a_shared_link_shows_the_same(page, site):
    """The address keeps the query, and opening it finds the same places."""
    found = ask(page, site.as_uri(), ["set_epoch"])["set_epoch"]
    assert page.url.endswith("?q=set_epoch")
    page.reload()
    page.wait_for_selector("#search-results a")
    links = page.locator(".search-hit").evaluate_all("all => all.map((a) => a.href)")
    assert [link.removeprefix(f"{site.as_uri()}/") for link in links] == found


def test_without_scripts_the_page_names_the_lists(site):
    """Where no script runs, the page leads to the lists of what there is."""
    html = (site / "search.html").read_text("utf8")
    (said,) = BeautifulSoup(html, "html.parser").select("article noscript")
    for link in said.find_all("a"):
        name, _, anchor = link["href"].partition("#")
        text = (site / name).read_text("utf8")
        assert not anchor or f'id="{anchor}"' in text


def test_search_finds_the_terms_of_the_glossary(page, site):
    """Each term is among the first three, in English, in Chinese, with blanks for _."""
    queries = [word for term in GLOSSARY for word in (term.name, term.chinese) if word]
    queries += [re.sub("[-_]", " ", query) for query in queries]
    found = ask(page, site.as_uri(), queries)
    late = [
        query
        for query, places in found.items()
        if not any(place.startswith("book/app_glossary") for place in places[:3])
    ]
    assert late == []


def test_search_finds_the_messages_that_pages_show(page, site, pages):
    """A message is found as the page shows it, or by its first words if it is long."""
    shown: dict[str, set[str]] = {}

    def add(text: str, name: str) -> None:
        for message in MESSAGE.findall(text):
            shown.setdefault(shorten(message, 120, placeholder=""), set()).add(name)

    blocks = SoupStrainer("pre")  # to read all of each page takes four times as long
    for name in pages:
        html = (site / f"{name}.html").read_text("utf8")
        for block in BeautifulSoup(html, "html.parser", parse_only=blocks)("pre"):
            add(block.get_text(), name)
    outcomes = json.loads((ROOT / "errata" / "outcomes.json").read_text("utf8"))
    for ends in outcomes.values():
        for end in ends.values():
            add(end["text"], "book/app_errata")
    cases = {case.slug: case for case in clinic.folder(ROOT / "clinic")}
    outcomes = json.loads((ROOT / "clinic" / "outcomes.json").read_text("utf8"))
    for slug, ends in outcomes.items():
        name = clinic.CLASSES[cases[slug].fields["class"]]
        for cell in "broken", "fixed":
            add(ends[cell]["text"], f"book/{name}")
    assert len(shown) > 30
    found = ask(page, site.as_uri(), shown)
    on = {
        text: {p.partition(".html")[0] for p in places}
        for text, places in found.items()
    }
    assert {text: names for text, names in shown.items() if not names & on[text]} == {}
