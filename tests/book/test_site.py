"""The built book's files have no broken link, and one title and no local path each."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

from allranks.base.paths import ROOT
from book._ext.chapters.chapter_map import SECTION

LONGEST = {"run-output": 25, "chapter-diff": 40}  # lines that stand unfolded
# The one is the subject of its section, which goes through it from top to bottom.
WHOLE = {("app_clinic_launch", "run-output")}


def parse(path: Path) -> BeautifulSoup:
    """Return a page as a tree."""
    return BeautifulSoup(path.read_text("utf8"), "html.parser")


@pytest.fixture(scope="session")
def trees(site) -> dict[Path, BeautifulSoup]:
    """Return every HTML file of the site, parsed."""
    pages = [p for p in site.rglob("*.html") if "_static" not in p.parts]
    return {path: parse(path) for path in pages}


def test_every_page_of_the_toc_is_built(site, pages):
    """The site holds what the table of contents promises."""
    missing = [page for page in pages if not (site / f"{page}.html").is_file()]
    assert not missing


def test_a_section_page_is_numbered_below_its_chapter(site, trees):
    """Its title says 8.1, also in the contents of other pages; its headings do not."""
    names = [p for p in ROOT.glob("book/*.md") if SECTION.fullmatch(p.stem)]
    for name in names:
        number = ".".join(SECTION.fullmatch(name.stem).groups())
        tree = trees[site / "book" / f"{name.stem}.html"]
        numbers = [tag.get_text() for tag in tree.select("article .section-number")]
        assert numbers == [f"{number}. "]
        for other in site / "book" / "intro.html", site / "book" / "app_status.html":
            (link,) = trees[other].select(f'nav.bd-links a[href="{name.stem}.html"]')
            assert link.get_text().strip().startswith(f"{number}. ")
    assert names


def test_every_link_and_anchor_leads_somewhere(trees):
    """Each internal href and src is a file of the site, each anchor an id in it."""
    ids = {path: {tag["id"] for tag in tree(id=True)} for path, tree in trees.items()}
    broken, checked = [], 0
    for path, tree in trees.items():
        folder = (path.parent / tree.base["href"]).parent if tree.base else path.parent
        for tag in [*tree(href=True), *tree(src=True)]:
            link = tag.get("href", tag.get("src"))
            url = urlsplit(link)
            if url.scheme or url.netloc or link in ("#", "") or tag.name == "base":
                continue
            checked += 1
            target = (folder / unquote(url.path)).resolve() if url.path else path
            fragment = unquote(url.fragment)
            if not target.is_file():
                broken.append(f"{path.name}: {link} is no file")
            elif fragment and target in ids and fragment not in ids[target]:
                broken.append(f"{path.name}: {link} is no anchor")
    assert not broken
    assert checked > 20 * len(trees)  # otherwise the test has missed the links


def test_every_file_that_a_style_sheet_names_exists(site):
    """Fonts and pictures in ``url()`` are files of the site, or inside the sheet."""
    broken = []
    for sheet in (site / "_static").rglob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", sheet.read_text("utf8"), flags=re.DOTALL)
        for url in re.findall(r"url\(\s*[\"']?((?!data:)[^\"')]+)", text):
            if not (sheet.parent / urlsplit(url).path).is_file():
                broken.append(f"{sheet.name}: {url}")
    assert not broken


def test_no_file_waits_for_a_page_that_loads_it(site, trees):
    """Each file is named by a page, or by a style sheet or a script that a page loads.

    The themes bring fonts and icons that none names (book/_ext/site/unused.py).
    """
    files = {path for path in (site / "_static").rglob("*") if path.is_file()}
    text = "".join(path.read_text("utf8") for path in trees)
    while named := {path for path in files if path.name in text}:
        files -= named
        own = [path for path in named if path.suffix in (".css", ".js")]
        text = "".join(path.read_text("utf8") for path in own)
    assert not sorted(path.relative_to(site).as_posix() for path in files)


def test_every_picture_says_what_it_shows(trees):
    """Images and drawings have a text; outside the article they may be decoration."""
    silent = []
    for path, tree in trees.items():
        for tag in tree(["img", "svg"]):
            title = tag.title.get_text() if tag.name == "svg" and tag.title else ""
            text = tag.get("alt") or tag.get("aria-label") or title
            by = tag.get("aria-labelledby")
            label = by and tree.find(id=by)
            article = tag.find_parent("article")
            decoration = tag.get("alt") == "" or tag.get("aria-hidden") == "true"
            # What cards and browsers' own triangles say, too.
            around = ["map-strip", "map-thumb", "sd-summary-state-marker"]
            said = tag.find_parent(class_=around)
            if not (text or label or said or (decoration and not article)):
                silent.append(f"{path.name}: {str(tag)[:100]}")
    assert not silent


def test_no_quote_or_dash_was_put_into_an_option(trees):
    """Outside of code too, "--local-rank" keeps its two hyphens, to be copied."""
    changed = []
    for path, tree in trees.items():
        for text in tree.find_all(string=re.compile("[–—](?=[a-z][a-z-]+)")):
            if not text.find_parent(["pre", "code", "script", "style"]):
                changed.append(f"{path.name}: {text[:80]}")
    assert not changed


def test_each_page_has_one_title_and_a_description(site, pages, trees):
    """Search engines and screen readers find a title, a description and a language."""
    for page in pages:
        tree = trees[site / f"{page}.html"]
        assert len(tree.select("article h1")) == 1, page
        described = tree.select("meta[name=description]")
        assert len(described) == 1 and len(described[0]["content"]) > 40, page
        assert tree.title.get_text(strip=True), page
        assert (
            tree.html["lang"] == "en" and len(tree.select("meta[name=viewport]")) == 1
        )


def test_each_page_names_its_picture(site, pages, trees):
    """Title, description and picture are there; the picture is the page's own."""
    seen = set()
    for page in pages:
        tree = trees[site / f"{page}.html"]
        tags = {
            one["property"]: one["content"]
            for one in tree.select("head meta[property^=og]")
        }
        heading = tree.select_one("article h1").get_text().removesuffix("#")
        assert re.sub(r"^[\d.]+\. ", "", heading) == tags["og:title"], page
        assert len(tags["og:description"]) > 40 and tags["og:type"] == "article"
        if tags["og:image"].startswith("https://"):
            path = site / "_static" / tags["og:image"].partition("/_static/")[2]
        else:  # nothing says where this copy of the book will be
            path = (site / page).parent / tags["og:image"]
        data = path.read_bytes()
        assert data[:4] == b"\x89PNG" and len(data) < 60_000
        assert tuple(int.from_bytes(data[i : i + 4], "big") for i in (16, 20)) == (
            1200,
            630,
        )
        seen.add(data)
        assert len(tree.select('meta[name="twitter:card"]')) == 1
    assert len(seen) == len(pages)


def test_no_long_output_stands_unfolded(site, trees):
    """At most 25 lines of an output and 40 of a diff, unless in a folded part."""
    found, most = [], 0
    for path in sorted(site.glob("book/*.html")):
        tree = trees[path]
        for kind, longest in LONGEST.items():
            for block in tree.select(f".{kind}"):
                lines = len(block.pre.get_text().strip("\n").splitlines())
                inside = block.find_parent("details") or block.find_parent(
                    class_=re.compile("dropdown")
                )
                if not inside and (path.stem, kind) not in WHOLE:
                    most = max(most, lines)
                    if lines > longest:
                        found.append(f"{path.stem}: {lines} lines of {kind}")
    assert not found
    assert most > 15, "nothing was measured"
    assert {path for path, _ in WHOLE} <= {p.stem for p in ROOT.glob("book/*.md")}


def test_pages_show_no_path_of_the_machine_that_built_them(site, trees):
    """No page shows the folder in which it was built."""
    for path in [*trees, site / "_static" / "search_index.js"]:
        assert str(ROOT) not in path.read_text("utf8"), path.name


def test_only_our_style_sheets_block_and_no_script_does(site, pages, trees):
    """Before the first paint come the page itself and small style sheets of our own."""
    own = re.compile(
        r"/(pygments|theme|book|clinic|quiz|course|diagnose|filter|kit|wall_chart)\.css"
    )
    for page in pages:
        tree = trees[site / f"{page}.html"]
        sheets = [tag["href"] for tag in tree.select("head link[rel=stylesheet]")]
        assert [sheet for sheet in sheets if not own.search(sheet)] == [], page
        assert len(sheets) <= 6, page
        assert tree.select("script[src]:not([defer])") == [], page


def test_our_style_sheet_knows_all_that_pages_have_of_the_themes(trees):
    """An icon without a drawing is a black square, and a tab would have no style."""
    css = (ROOT / "book" / "_static" / "theme.css").read_text("utf8")
    drawn = {"solid", "lg", *re.findall(r"^\.fa-([\w-]+) \{", css, re.MULTILINE)}
    styled = "sd-container-fluid, sd-sphinx-override, sd-row, sd-col, sd-dropdown"
    for path, tree in trees.items():
        icons = {name for tag in tree.select("[class*=fa-]") for name in tag["class"]}
        names = {name.removeprefix("fa-") for name in icons if name.startswith("fa-")}
        assert names and names <= drawn, path.name
        for tag in tree.select("[class^=sd-]:not(details.sd-dropdown *)"):
            assert tag["class"][0] in styled.split(", "), f"{path.name}: {tag['class']}"


def test_the_map_and_the_course_sheet_agree(site, trees):
    """Both say the same minutes for a chapter's parts, and the same hours in all."""
    intro, course = (
        " ".join(trees[site / "book" / f"{name}.html"].article.get_text().split())
        for name in ("intro", "app_course")
    )
    own = r"take about (\d+) hours, and their exercises another (\d+)\."
    both = sum(map(int, re.search(own, intro).groups()))
    assert abs(both - int(re.search(r"about (\d+) hours", course)[1])) <= 1  # rounded
    (row,) = [
        [cell.get_text(strip=True) for cell in row("td")]
        for row in trees[site / "book/app_course.html"].select(".course-table")[0]("tr")
        if "DistributedDataParallel" in row.get_text()
    ]
    page, quizzes, notebook, exercises = map(int, row[1:5])
    times = f"page {page + quizzes} min, notebook {notebook} min"
    assert f"{times}, exercises {exercises} min; builds on" in intro
