"""The built book: no broken link, no request to the network, no error, no overflow.

A page is loaded four times: on a server and from a folder, light and dark, on a phone
and on a laptop. Of these three, the four visits hold every pair once.
"""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

from allranks.paths import ROOT
from tests.book.weight import MOST_FILES

WIDTHS = {"phone": (390, 844), "laptop": (1280, 800)}
# First what moved while it loaded. What a click shows must fit, too: answers, hints.
LOOK = """
async () => {
  const painted = () =>
    new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
  const count = (selector) => document.querySelectorAll(selector).length;
  let shift = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) shift += entry.value;
  }).observe({ type: "layout-shift", buffered: true });
  await painted();
  await new Promise((done) => setTimeout(done));
  const moved = shift;
  for (const box of document.querySelectorAll("details")) box.open = true;
  await painted();
  const parts = [document.documentElement, ...document.querySelectorAll(
    "main, .bd-article-container, .bd-article")];
  const wide = parts.filter((e) => e.scrollWidth > Math.min(e.clientWidth, innerWidth));
  const cut = [], range = document.createRange();
  const whole = "table:not(.specimen-table) td code, .prev-next-title";
  for (const part of document.querySelectorAll(whole)) {
    const texts = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      for (const word of texts.currentNode.data.matchAll(/\\S+/g)) {
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        if (range.getClientRects().length > 1) cut.push(word[0]);
      }
    }
  }
  return {
    moved,
    cut,
    wide: wide.map((e) =>
      `${e.tagName}.${e.className}: ${e.scrollWidth} > ${e.clientWidth}`),
    theme: document.documentElement.dataset.theme,
    blocks: count("div:not(.output, .no-copy) > div.highlight > pre"),
    buttons: count("div.highlight > button.copybtn"),
  };
}
"""


def parse(path: Path) -> BeautifulSoup:
    """A page as a tree."""
    return BeautifulSoup(path.read_text("utf8"), "html.parser")


@pytest.fixture(scope="session")
def trees(site) -> dict[Path, BeautifulSoup]:
    """Every HTML file of the site, parsed."""
    pages = [p for p in site.rglob("*.html") if "_static" not in p.parts]
    return {path: parse(path) for path in pages}


def test_every_page_of_the_toc_is_built(site, pages):
    """The site holds what the table of contents promises."""
    missing = [page for page in pages if not (site / f"{page}.html").is_file()]
    assert not missing


def test_every_link_and_anchor_leads_somewhere(trees):
    """Each internal href and src is a file of the site, each anchor an id in it."""
    ids = {path: {tag["id"] for tag in tree(id=True)} for path, tree in trees.items()}
    broken, checked = [], 0
    for path, tree in trees.items():
        for tag in [*tree(href=True), *tree(src=True)]:
            link = tag.get("href", tag.get("src"))
            url = urlsplit(link)
            if url.scheme or url.netloc or link in ("#", ""):
                continue
            checked += 1
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            fragment = unquote(url.fragment)
            if not target.is_file():
                broken.append(f"{path.name}: {link} is no file")
            elif fragment and target in ids and fragment not in ids[target]:
                broken.append(f"{path.name}: {link} is no anchor")
    assert not broken
    assert checked > 20 * len(trees)  # otherwise this looked at nothing


def test_every_picture_says_what_it_shows(trees):
    """Images and drawings have a text; outside of the article, or are decoration."""
    silent = []
    for path, tree in trees.items():
        for tag in tree(["img", "svg"]):
            title = tag.title.get_text() if tag.name == "svg" and tag.title else ""
            text = tag.get("alt") or tag.get("aria-label") or title
            label = tree.find(id=tag.get("aria-labelledby", "-"))
            article = tag.find_parent("article")
            decoration = tag.get("alt") == "" or tag.get("aria-hidden") == "true"
            if not (text or label or (decoration and not article)):
                silent.append(f"{path.name}: {str(tag)[:100]}")
    assert not silent


def test_each_page_has_one_title_and_a_description(site, pages, trees):
    """What a search engine and a screen reader read first."""
    for page in pages:
        tree = trees[site / f"{page}.html"]
        assert len(tree.select("article h1")) == 1, page
        described = tree.select("meta[name=description]")
        assert len(described) == 1 and len(described[0]["content"]) > 40, page
        assert tree.title.get_text(strip=True), page
        assert (
            tree.html["lang"] == "en" and len(tree.select("meta[name=viewport]")) == 1
        )


def test_pages_show_no_path_of_the_machine_that_built_them(site, trees):
    """Anyone's build gives the same pages."""
    for path in [*trees, site / "searchindex.js"]:
        assert str(ROOT) not in path.read_text("utf8"), path.name


@pytest.fixture(scope="module", params=["http", "file"])
def base(request, site, http) -> str:
    """Where the site is: on a server, or in a folder."""
    return http if request.param == "http" else site.as_uri()


def test_one_style_sheet_blocks_and_no_script_does(site, pages, trees):
    """Before the first paint comes the page itself and one style sheet."""
    own = re.compile(r"/(all|clinic|quiz|course|diagnose|kit)\.css")
    for page in pages:
        tree = trees[site / f"{page}.html"]
        sheets = [tag["href"] for tag in tree.select("head link[rel=stylesheet]")]
        assert [sheet for sheet in sheets if not own.search(sheet)] == [], page
        assert len(sheets) <= 3, page
        assert tree.select("script[src]:not([defer])") == [], page


class Visit:
    """One page in one browser window: what it asked for and complained about."""

    def __init__(self, browser, base: str, theme: str, width: str):
        x, y = WIDTHS[width]
        self.base, self.theme, self.width = base, theme, width
        self.context = browser.new_context(
            viewport={"width": x, "height": y}, color_scheme=theme
        )
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("request", self.hear)
        self.page.on("console", self.listen)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.asked: set[str] = set()

    def hear(self, request) -> None:
        """Only the site's own files may be asked for; FLAGS refuse all the rest."""
        self.asked.add(request.url)
        if not request.url.startswith((f"{self.base}/", "data:", "blob:")):
            self.complaints.append(f"asked the network for {request.url}")

    def listen(self, message) -> None:
        """Keep errors and warnings of the console."""
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, page: str) -> dict:
        """Load a page, wait for its scripts, and look at it; complaints are kept."""
        self.complaints.clear(), self.asked.clear()
        self.page.goto(f"{self.base}/{page}")
        look = self.page.evaluate(LOOK)
        self.complaints += [f"too wide: {text}" for text in look["wide"]]
        self.complaints += [f"cut in two: {word}" for word in look["cut"]]
        return look


@pytest.mark.parametrize(
    ("base", "theme", "width"),
    [
        ("http", "light", "phone"),
        ("http", "dark", "laptop"),
        ("file", "light", "laptop"),
        ("file", "dark", "phone"),
    ],
    indirect=["base"],
)
def test_pages_are_quiet_light_and_fit(browser, base, pages, theme, width):
    """No request leaves, nothing complains, sticks out or jumps; code can be copied."""
    visit, problems = Visit(browser, base, theme, width), []
    for page in pages:
        look = visit.open(f"{page}.html")
        assert look["theme"] == theme
        found = [*visit.complaints]
        if look["buttons"] != look["blocks"]:
            found.append(f"{look['blocks']} blocks, {look['buttons']} copy buttons")
        if look["moved"] > 0.02:
            found.append(f"the layout shifted by {look['moved']:.3f}")
        if not 3 <= len(visit.asked) <= MOST_FILES:  # itself, its style, its script
            found.append(f"{len(visit.asked)} requests: {sorted(visit.asked)}")
        problems += [f"{page}, {theme}, {width}: {text}" for text in found]
    visit.context.close()
    assert not problems, "\n".join(problems)


def test_search_finds_a_page(browser, base):
    """Search works without a server as well."""
    visit = Visit(browser, base, "light", "laptop")
    visit.open("search.html?q=rank")
    visit.page.wait_for_selector("#search-results li a")
    visit.context.close()
    assert not visit.complaints
