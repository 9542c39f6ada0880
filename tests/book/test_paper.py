"""The EPUB and the PDF hold the whole book, without controls or broken links."""

import io
import posixpath
import re
import shutil
import subprocess
import sys
import unicodedata
import zipfile
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest
import yaml
from pypdf import PdfReader

from allranks.base.paths import ROOT
from book._ext.paper import readable
from book._tools import paper as tool
from book._tools import pdf as printer
from book._tools.browser import MISSING, find

PAGES = [
    name
    for _, pages in tool.parts(yaml.safe_load((ROOT / "_toc.yml").read_text("utf8")))
    for name, _ in pages
]
XHTML = "{http://www.w3.org/1999/xhtml}"
CONTROLS = "button", "details", "form", "input", "progress", "script", "select"
XLINK = "{http://www.w3.org/1999/xlink}href"
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with both; the PDF is printed from the EPUB's pages."""
    if not find():
        pytest.skip(MISSING)
    folder = tmp_path_factory.mktemp("paper")
    command = [sys.executable, ROOT / "book/_tools/paper.py", "pdf", "--folder", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def epub(folder):
    """Return the EPUB's files by name."""
    with zipfile.ZipFile(folder / "paper/_build/epub/all-ranks.epub") as book:
        assert book.infolist()[0].filename == "mimetype"
        assert book.infolist()[0].compress_type == zipfile.ZIP_STORED
        return {name: book.read(name) for name in book.namelist()}


@pytest.fixture(scope="module")
def trees(epub):
    """Return every page of the EPUB, parsed as XML."""
    pages = [name for name in epub if name.endswith(".xhtml")]
    return {name: ElementTree.fromstring(epub[name]) for name in pages}


@pytest.fixture(scope="module")
def pdf(folder) -> PdfReader:
    """Return the PDF, opened for reading."""
    return PdfReader(io.BytesIO((folder / "all-ranks.pdf").read_bytes()))


def test_the_epub_holds_every_page_in_the_books_order(epub):
    """The spine holds the cover, then the pages of the table of contents."""
    opf = epub["content.opf"].decode()
    files = dict(re.findall(r'href="([^"]+)"[^>]*? ?id="([^"]+)"', opf))
    files |= {b: a for a, b in re.findall(r'id="([^"]+)" href="([^"]+)"', opf)}
    names = {key: href for href, key in files.items()}
    spine = [names[key] for key in re.findall(r'<itemref idref="([^"]+)" />', opf)]
    assert spine == ["epub-cover.xhtml", *(f"{page}.xhtml" for page in PAGES)]
    assert set(spine) < set(epub)
    nav = epub["nav.xhtml"].decode()
    assert [p for p in PAGES if f'href="{p}.xhtml"' not in nav] == []


def test_the_epub_says_what_it_is(epub, trees):
    """It has a cover, a language and an id, and declares each page's MathML and SVG."""
    opf = epub["content.opf"].decode()
    assert 'properties="cover-image"' in opf
    assert "<dc:language>en<" in opf and "urn:uuid:" in opf
    for name, tree in trees.items():
        tags = {tag.tag.rpartition("}")[2] for tag in tree.iter()}
        item = re.search(rf'<item [^>]*href="{name}"[^>]*>', opf)[0]
        assert ("mathml" in item) == ("math" in tags), name
        assert ('="svg' in item or " svg" in item) == ("svg" in tags), name


def test_no_control_is_left_on_paper(trees):
    """Nothing can be pressed, folded or run, and no style waits for a script."""
    assert len(trees) > len(PAGES)
    for name, tree in trees.items():
        tags = {tag.tag.removeprefix(XHTML) for tag in tree.iter()}
        assert tags & set(CONTROLS) == set(), name
        assert "var(--" not in ElementTree.tostring(tree, "unicode"), name


def test_answers_stand_at_the_end_of_a_page(trees):
    """No answer follows its question; all stand below the page, with its number."""
    asked = 0
    for name, tree in trees.items():
        boxes, answers, ends = (
            [tag for tag in tree.iter() if kind in tag.get("class", "").split()]
            for kind in ("quiz", "quiz-answer", "quiz-answers")
        )
        assert len(answers) == len(boxes) and len(ends) == bool(boxes), name
        for number, (box, answer) in enumerate(zip(boxes, answers, strict=True), 1):
            assert answer in [*ends[0]] and answer not in [*box.iter()]
            asked += 1
            head, question = ("".join(tag[0].itertext()) for tag in (answer, box))
            assert head == f"Quiz {number}" and question.startswith(head)
        if boxes:
            body = next(tree.iter(f"{XHTML}body"))
            assert [*body.iter()][-1] in [*ends[0].iter()], name
    assert asked > 40


def test_links_of_the_epub_lead_somewhere(epub, trees):
    """Every link and picture leads to a file of the EPUB, and to an anchor in it."""
    ids = {n: {t.get("id") for t in tree.iter()} for n, tree in trees.items()}
    broken, checked = [], 0
    for name, tree in trees.items():
        for tag in tree.iter():
            link = tag.get("href") or tag.get("src") or tag.get(XLINK)
            if not link or urlsplit(link).scheme:
                continue
            checked += 1
            path, _, anchor = link.partition("#")
            here = posixpath.dirname(name)
            target = posixpath.normpath(posixpath.join(here, path)) if path else name
            anchored = not anchor or unquote(anchor) in ids.get(target, ())
            if target not in epub or not anchored:
                broken.append(f"{name}: {link}")
    assert broken == []
    assert checked > 100


@pytest.fixture(scope="module")
def places(pdf) -> dict[str, int]:
    """Return the page of each heading, counted from 1."""
    return printer.targets(pdf.stream.getvalue())


def words(pdf, number: int) -> str:
    """Return the text of a page, counted from 1, with Chinese as one would type it."""
    text = unicodedata.normalize("NFKC", pdf.pages[number - 1].extract_text())
    return re.sub(r"\s+", " ", text)


def tight(text: str) -> str:
    """Return a text without spaces: a narrow gap between words is read as none."""
    return text.replace(" ", "")


def test_the_pdf_has_a_contents_page_numbers_and_bookmarks(pdf, places):
    """Each page of the book begins on a new one, where contents and bookmark say."""
    first = places[tool.name(PAGES[0])]
    contents = tight("".join(words(pdf, number) for number in range(2, first)))
    marks = [row for row in pdf.outline if not isinstance(row, list)]
    titles = [row["/Title"] for row in marks[1:]]  # the first is the contents
    assert len(titles) == len(PAGES)
    for page, mark, title in zip(PAGES, marks[1:], titles, strict=True):
        number, text = places[tool.name(page)], words(pdf, places[tool.name(page)])
        assert pdf.get_destination_page_number(mark) + 1 == number
        assert tight(f"{title} {number}") in contents
        assert tight(text).startswith(tight(f"All Ranks {title} {number} {title}"))
    assert len({places[tool.name(page)] for page in PAGES}) == len(PAGES)


def test_chinese_terms_can_be_searched(pdf, places):
    """Chinese terms are text, if the machine that makes the PDF has a font for them."""
    if not shutil.which("fc-list"):
        pytest.skip("no fc-list: it cannot be known whether there is a Chinese font")
    fonts = subprocess.run(["fc-list", ":lang=zh-cn"], capture_output=True, text=True)
    if not fonts.stdout.strip():
        pytest.skip("no Chinese font on this machine: fonts-noto-cjk has one")
    first = places["book-app_glossary"]
    assert "全局批大小" in "".join(words(pdf, first + i) for i in range(9))


def test_the_pdf_is_for_everybody(pdf, places):
    """The PDF has its picture, its title, and tags for screen readers."""
    assert len(pdf.pages[0].images) == 1
    assert "/StructTreeRoot" in pdf.trailer["/Root"]
    assert pdf.metadata.title == "All Ranks"


def test_what_is_wider_than_the_paper_is_refused(tmp_path):
    """A line that would be cut off at the right keeps the PDF from being written."""
    if not find():
        pytest.skip(MISSING)
    path = tmp_path / "wide.html"
    path.write_text('<div class="doc"><pre>' + "x" * 200)
    with printer.Printer() as one, pytest.raises(SystemExit, match="cut at the right"):
        one.print(path)


FORM = """<form><fieldset hidden><p>x</p></fieldset><p>Which?</p>
<label for="a"><input type="radio" id="a" checked/> one</label>
<input type="number"/> <select><option>p</option><option selected>q</option></select>
<button>Check</button><details class="dropdown"><summary>Answer</summary>two</details>
</form><script>1</script><p class="no-paper">menu</p>"""


def test_a_quiz_becomes_a_question_its_options_and_the_answer():
    """Whatever can be read stays, and every control goes."""
    text = readable.parse(readable.readable(FORM)).get_text(" ", strip=True)
    assert text == "Which? ○ one ______ q Answer two"
    html = readable.readable(FORM)
    assert not re.search(r"<(?:form|input|button|details|script|label)", html)
    assert '<p class="summary">Answer</p>' in html


def test_drawings_keep_their_capitals_and_get_plain_colors():
    """SVG is case-sensitive, and an e-reader doesn't know our CSS variables."""
    svg = '<svg viewBox="0 0 1 1"><linearGradient gradientUnits="x"/>'
    svg += '<path fill="var(--rank-1, #abc)" stroke="var(--odd, #123)"/></svg>'
    html = readable.readable(svg)
    assert 'viewBox="0 0 1 1"' in html
    assert "<linearGradient gradientUnits" in html
    assert f'fill="{readable.COLORS["--rank-1"]}"' in html
    assert 'stroke="#123"' in html


def test_an_explorable_becomes_its_picture():
    """The picture and the caption stay, with a note that the site has controls."""
    page = '<figure class="explorable" data-state="{}"><svg></svg><button>+</button>'
    page += "<figcaption>Four ranks.</figcaption></figure>"
    html = readable.readable(page)
    assert "<svg></svg><figcaption>Four ranks.</figcaption>" in html
    assert readable.HAS_CONTROLS in html and "data-state" not in html


def test_an_id_is_on_a_page_once():
    """A repeated id is dropped, because it would make the EPUB invalid."""
    assert readable.readable('<p id="a"></p><p id="a"></p>').count("id=") == 1


@pytest.mark.parametrize(
    ("page", "expected"),
    [("<math/>", "mathml"), ("<p><svg/></p>", "svg"), ("<p>math</p>", "")],
)
def test_what_a_page_holds_is_told(page, expected):
    """A page's MathML and SVG are found by its tags, not by its words."""
    assert readable.properties(page) == expected
