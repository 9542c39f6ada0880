"""The built book: no broken link, no request to the network, no error, no overflow."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = {"phone": (390, 844), "laptop": (1280, 800)}
OVERFLOW = """
[document.documentElement, ...document.querySelectorAll(
    "main, .bd-article-container, .bd-article")]
    .filter(e => e.scrollWidth > Math.min(e.clientWidth, innerWidth))
    .map(e => `${e.tagName}.${e.className}: ${e.scrollWidth} > ${e.clientWidth}`)
"""

# What a click shows must fit, too: answers, hints, longer explanations.
UNFOLD = "for (const box of document.querySelectorAll('details')) box.open = true"
PAINTED = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"


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


def test_each_page_has_one_title_and_a_description(site, pages):
    """What a search engine and a screen reader read first."""
    for page in pages:
        tree = parse(site / f"{page}.html")
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
        self.page.route("**/*", self.answer)
        self.page.on("console", self.listen)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def answer(self, route) -> None:
        """Let the site's own files through, and nothing else."""
        url = route.request.url
        if url.startswith((f"{self.base}/", "data:", "blob:")):
            route.continue_()
        else:
            self.complaints.append(f"asked the network for {url}")
            route.abort()

    def listen(self, message) -> None:
        """Keep errors and warnings of the console."""
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, page: str):
        """Load a page, wait for its scripts, and return what is wrong with it."""
        self.complaints.clear()
        self.page.goto(f"{self.base}/{page}")
        self.page.evaluate(UNFOLD)
        self.page.evaluate(PAINTED)
        wide = [f"too wide: {text}" for text in self.page.evaluate(OVERFLOW)]
        return [
            f"{page}, {self.theme}, {self.width}: {text}"
            for text in [*self.complaints, *wide]
        ]


VISITS = [("http", theme, width) for theme in ("light", "dark") for width in WIDTHS]
VISITS += [("file", "light", "laptop"), ("file", "dark", "phone")]  # the same files


@pytest.fixture(scope="module", params=["http", "file"])
def base(request, site, http) -> str:
    """Where the site is: on a server, or in a folder."""
    return http if request.param == "http" else site.as_uri()


@pytest.mark.parametrize(("base", "theme", "width"), VISITS, indirect=["base"])
def test_pages_are_quiet_and_fit(browser, base, pages, theme, width):
    """No request leaves, no error is logged, nothing sticks out, code can be copied."""
    visit = Visit(browser, base, theme, width)
    problems = []
    for page in pages:
        problems += visit.open(f"{page}.html")
        shown = visit.page.locator("html").get_attribute("data-theme")
        assert shown == theme
        code = "div:not(.output, .no-copy) > div.highlight > pre"
        blocks = visit.page.locator(code).count()
        buttons = visit.page.locator("div.highlight > button.copybtn")
        if buttons.count() != blocks:
            problems.append(f"{page}: {blocks} blocks, {buttons.count()} copy buttons")
    visit.context.close()
    assert not problems


def test_search_finds_a_page(browser, base):
    """Search works without a server as well."""
    visit = Visit(browser, base, "light", "laptop")
    problems = visit.open("search.html?q=rank")
    visit.page.wait_for_selector("#search-results li a")
    visit.context.close()
    assert not problems
