"""The course sheet counts what the pages hold, and refuses a plan that can't fit."""

import doctest
import io
import re
from textwrap import dedent

import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

from allranks.base.paths import ROOT
from book._ext.chapters import course_data
from tests.book.quizzes import QUIZZES

PARTS = ["site.mathml", "quiz.nodes", "quiz.directive", "chapters.course"]
EXTENSIONS = [f"book._ext.{part}" for part in PARTS]
TOC = """
root: book/intro
parts:
  - caption: "Part I"
    chapters:
      - file: book/ch1_one
      - file: book/ch2_two
"""
ONE = """
# The one

**After this page** you can say `one`.

## Why?

{words}

```python
{code}
```

```console
$ not counted
```

| a | table |
|---|---|
| to | look at |
"""
TWO = """---
course: {slot: 1, who: is for `all`}
---
# The two

**After this page** you can go on. See {ref}`ch1_one`.

```{quiz}
:name: ch2_q

Why?

- (x) a

  b

- ( ) c

  d
```
"""
EXERCISE = '"""Add.\n\nChapter: 2\nMinutes: {}\n{}\nTASK\n"""\n'
FILES = {
    "_toc.yml": TOC,
    "book/ch1_one.md": "(ch1_one)=" + ONE.format(words="word " * 380, code="x\n" * 41),
    "book/ch2_two.md": TWO,
    "scripts/ch2_two.py": "",
    "exercises/ex2_1.py": EXERCISE.format(10, ""),
    "exercises/ex2_10.py": EXERCISE.format(30, "Level: hard\n"),
    "exercises/ex2_2.py": EXERCISE.format(20, ""),
}


@pytest.fixture
def build(tmp_path):
    """Return a function that builds a small book with a sheet: (tree, warnings)."""

    def build(sheet: str, **files: str):
        source = tmp_path / "source"
        files = {**FILES, "book/intro.md": f"# S\n\n{sheet}", **files}
        for name, text in files.items():
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_text("utf8") != dedent(text):
                # Only changed files are written, since Sphinx would read them again.
                path.write_text(dedent(text), "utf8")
        warnings = io.StringIO()
        settings = {
            "extensions": ["myst_parser", *EXTENSIONS],
            "root_doc": "book/intro",
            "html_theme": "basic",
            "suppress_warnings": ["toc", "myst.xref_missing"],
        }
        folders = (source, None, tmp_path / "out", tmp_path / "trees")
        with docutils_namespace():
            app = Sphinx(*folders, "html", settings, status=None, warning=warnings)
            app.build()
        build.app = app
        html = (tmp_path / "out" / "book" / "intro.html").read_text("utf8")
        text = re.sub(r"\x1b\[[0-9;]*m|.* isn't included .*\n", "", warnings.getvalue())
        return BeautifulSoup(html, "html.parser"), text

    return build


def rows(tree) -> list[list[str]]:
    """Return the first table's cells, row by row."""
    return [[c.text for c in row(["td", "th"])] for row in tree.table("tr")]


def test_a_sheet_says_what_a_chapter_holds(build):
    """Goals and questions come from the page; minutes and quizzes are counted."""
    sheet, warnings = build("```{course-sheet}\n```\n")
    assert not warnings
    one, two = sheet.select("section.course")
    assert one.p.text == "After this page you can say one."
    assert one.code.text == "one"
    assert [li.text for li in one("li")] == ["Why?"]
    facts = dict(rows(one))
    assert facts["Page"] == "The one, 11 min (3 for prose, 7 for code, 1 for figures)"
    assert facts["Exercises"] == "none yet"
    assert two.p.text == "After this page you can go on. See The one."
    facts = dict(rows(two))
    assert facts["Know before"] == "1. The one"
    assert facts["Quizzes"] == "1 on the page, 1 min"
    assert facts["Exercises"] == (
        "2.1 Add (10 min); 2.2 Add (20 min); 2.10 Add (30 min, hard). Together 60 min"
    )
    assert facts["Scripts"] == "ch2_two.py"
    assert two.find("a", href="ch1_one.html")


def test_a_section_page_counts_with_its_chapter(build):
    """Goals, minutes and quizzes are those of both pages, and the map has no third."""
    more = TWO.partition("---\n# ")[2].replace("ch2_q", "ch2_p")
    more = f"# {more}\n## And then?\n\n{'word ' * 280}\n"
    toc = f"{TOC}        sections:\n          - file: book/ch2_1_more\n"
    page = {"_toc.yml": toc, "book/ch2_1_more.md": more.replace("The two", "The more")}
    sheet, warnings = build("```{course-sheet}\n```\n\n```{progress}\n```\n", **page)
    assert not warnings
    _, two = sheet.select("section.course")
    assert [p.text for p in two("p", recursive=False)] == [
        "After this page you can go on. See The one."
    ] * 2
    facts = dict(rows(two))
    assert facts["Page"] == (
        "The two, The more, 3 min (3 for prose, 0 for code, 0 for figures)"
    )
    assert facts["Quizzes"] == "2 on the pages, 2 min"
    assert two.find("a", href="ch2_1_more.html")
    assert [li.text for li in two("li")] == ["And then?"]
    cells = [c["data-progress"] for c in sheet.select(".progress-box [data-progress]")]
    assert cells[2] == "quiz ch2_q ch2_p"


def test_nothing_goes_stale(build):
    """An edit of another page changes the sheet, also in an incremental build."""
    build("```{course-sheet}\n```\n")
    more = TWO.replace("ch2_q", "ch2_p").replace("# The two\n", "")
    page = TWO + more.split("See {ref}`ch1_one`.")[1]
    sheet, _ = build("```{course-sheet}\n```\n", **{"book/ch2_two.md": page})
    assert dict(rows(sheet.select("section.course")[1]))["Quizzes"].startswith("2 on")


def test_all_tables_of_a_build_share_the_chapters(build, monkeypatch):
    """Each chapter is read once per build, and the next build reads it again."""
    read, look = [], course_data.exercises

    def note(root, number):
        read.append(number)
        return look(root, number)

    monkeypatch.setattr(course_data, "exercises", note)
    sheet = "```{course-sheet}\n```\n\n```{progress}\n```\n"
    build(sheet)
    assert read == ["1", "2"]
    assert build.app not in course_data.KEPT  # it may build again, from other pages
    longer = EXERCISE.format(15, "")
    sheet, _ = build(sheet, **{"exercises/ex2_1.py": longer})
    assert read == ["1", "2", "1", "2"]
    assert "2.1 Add (15 min)" in sheet.text


def test_a_plan_adds_up_and_says_what_is_left(build):
    """A plan has a row per chapter, their sum, and the minutes that are left."""
    sheet, _ = build("```{course-plan}\n:minutes: 90\n```\n")
    assert rows(sheet)[1:] == [
        ["1. The one", "11", "0", "0", "0", "11"],
        ["2. The two", "1", "1", "0", "60", "62"],
        ["All", "12", "1", "0", "60", "73"],
    ]
    assert "Minutes: 73 of 90: 17 are left for questions and breaks." in sheet.text


def test_a_short_course_has_the_chapters_whose_pages_have_a_slot(build):
    """The slots decide which chapters it has, and in which order."""
    one = {"book/ch1_one.md": "---\ncourse: {slot: 2}\n---\n# The one\n"}
    for slots, chapters in (1, ["2. The two"]), (2, ["2. The two", "1. The one"]):
        sheet, _ = build(f"```{{course-plan}}\n:slots: {slots}\n```\n", **one)
        assert [row[0] for row in rows(sheet)[1:] if row[0] != "All"] == chapters


def test_each_chapter_says_for_whom_it_is(build):
    """A paragraph has a sentence of each page that says so."""
    sheet, warnings = build("```{course-who}\n```\n")
    assert sheet.select_one("section p").text == "Chapter 2 is for all."
    assert sheet.select_one("section p code").text == "all" and not warnings


def test_sessions_keep_an_exercise_whole(build):
    """An exercise that doesn't fit into a session begins the next one."""
    plan = "```{course-plan}\n:sessions: 60\n:parts: page, exercises\n```\n"
    sheet, _ = build(plan)
    assert [(row[0], row[2]) for row in rows(sheet)[1:]] == [("1", "42"), ("2", "30")]
    assert rows(sheet)[2][1] == "2. The two: exercise 2.10 (30)"


@pytest.mark.parametrize(
    ("sheet", "files", "complaint"),
    [
        ("```{course-plan}\n:minutes: 60\n```", {}, "ch1, ch2 need 73 minutes"),
        (
            "```{course-plan}\n:slots: 2\n```",
            {},
            "no chapter: one chapter should have ",
        ),
        (
            "```{course-plan}\n:slots: 1\n```",
            {"book/ch1_one.md": "---\ncourse: {slot: 1}\n---\n# T"},
            "ch1 and ch2: one chapter should have slot 1",
        ),
        ("```{course-plan}\n:parts: pages\n```", {}, "pages is none of page, quiz"),
        ("```{course-sheet}\n```", {"book/ch2_two.md": "# T"}, "ch2_two does not say"),
        ("```{course-sheet}\n```", {"exercises/ex2_1.py": '"""A."""'}, "its Minutes:"),
    ],
)
def test_what_cannot_be_fails_the_build(build, sheet, files, complaint):
    """An impossible plan is reported in one sentence, with the page and the line."""
    _, warnings = build(f"{sheet}\n", **files)
    assert re.search(rf"intro\.md:\d+: WARNING: [\w-]+: .*{complaint}", warnings)


def test_the_overview_knows_the_names_behind_its_totals(build):
    """Without a script it shows totals; a script finds the names in its attributes."""
    sheet, _ = build("```{progress}\n```\n")
    cells = [c["data-progress"] for c in sheet.select(".progress-box [data-progress]")]
    assert cells == ["quiz", "exercise", "quiz ch2_q", "exercise ex2_1 ex2_2 ex2_10"]
    assert rows(sheet)[2] == ["2. The two", "1", "3"]
    assert "progress.js" in str(sheet)


@given(
    st.lists(st.integers(0, 200), max_size=12).map(
        lambda times: [(f"step {i}", minutes) for i, minutes in enumerate(times)]
    ),
    st.integers(1, 120),
)
def test_no_minute_is_lost_and_no_session_too_long(steps, length):
    """Sessions hold all steps in order, and none is longer than allowed."""
    shared = course_data.sessions(steps, length)
    assert all(0 < sum(m for _, m in session) <= length for session in shared)
    flat = [part for session in shared for part in session]
    for name, minutes in steps:
        assert sum(m for other, m in flat if other == name) == minutes
    names = [name for name, _ in flat]
    assert names == sorted(names, key=lambda name: int(name.split()[1]))


def test_examples_in_docstrings_hold():
    """Every example in the module gives what it says."""
    result = doctest.testmod(course_data)
    assert result.attempted
    assert not result.failed


def test_the_books_own_sheet_counts_its_own_chapters(site):
    """Each chapter has a section, and the sum of the overview is all quizzes."""
    html = (site / "book" / "app_course.html").read_text("utf8")
    sheet = BeautifulSoup(html, "html.parser")
    assert len(sheet.select("section.course")) == len([*ROOT.glob("notebooks/ch*")])
    names = [
        name
        for cell in sheet.select('[data-progress^="quiz"]')
        for name in cell["data-progress"].split()[1:]
    ]
    assert sorted(names) == sorted(quiz.name for quiz in QUIZZES)
