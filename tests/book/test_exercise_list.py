"""The list at the end of a page says what exercises/ says, and links to them."""

import io
import re

import pytest
from bs4 import BeautifulSoup
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

LIST = "# T\n\n## Exercises\n\n```{exercises}\n```\n"
FILES = {
    "book/ch2_two.md": LIST,
    "notebooks/ch2_two.md": "# N\n\n## Exercise 2.1 - Read a line\n\n"
    "## Exercise 2.10 - Add it's sum\n\n## Exercise 2.2 - Count\n",
    "exercises/ex2_1.py": '"""Read a line.\n\nMinutes: 8\n"""\n',
    "exercises/ex2_2.py": '"""Count.\n\nMinutes: 15\n"""\n',
    "exercises/ex2_10.py": '"""Add it\'s sum.\n\nMinutes: 30\nLevel: hard\n"""\n',
    "exercises/ex20_1.py": '"""Another chapter\'s.\n\nMinutes: 5\n"""\n',
}


@pytest.fixture
def build(tmp_path):
    """Return a function that builds a page: (its list's items, the warnings)."""

    def build(page: str = "ch2_two", **files: str):
        source, warnings = tmp_path / "source", io.StringIO()
        for name, text in {**FILES, **files}.items():
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_text("utf8") != text:
                path.write_text(text, "utf8")  # Sphinx reads again what was written
        settings = {
            "extensions": ["myst_parser", "book._ext.chapters.exercises"],
            "root_doc": "book/ch2_two",
            "html_theme": "basic",
            "suppress_warnings": ["toc"],
        }
        folders = (source, None, tmp_path / "out", tmp_path / "trees")
        with docutils_namespace():
            app = Sphinx(*folders, "html", settings, status=None, warning=warnings)
            app.build()
        html = (tmp_path / "out" / "book" / f"{page}.html").read_text("utf8")
        text = re.sub(r".* isn't included .*\n", "", warnings.getvalue())
        section = BeautifulSoup(html, "html.parser").find(id="exercises")
        return section.find_all("li"), text, tmp_path / "out" / "book"

    return build


def test_lists_a_chapters_own_exercises_in_order_each_with_its_minutes(build):
    """2.10 comes after 2.2, and chapter 20's are not among them."""
    items, warnings, folder = build()
    assert [" ".join(item.text.split()) for item in items] == [
        "2.1 Read a line, 8 minutes",
        "2.2 Count, 15 minutes",
        "2.10 Add it’s sum, 30 minutes, hard",
    ]
    assert not warnings
    for item in items:
        uri, _, anchor = item.a["href"].partition("#")
        page = (folder / uri).read_text("utf8")
        heading = BeautifulSoup(page, "html.parser").find(id=anchor).h2.text
        assert heading.startswith(f"Exercise {item.text.split()[0]} - ")


def test_a_changed_minute_changes_the_list(build):
    """The page is read again when the file of an exercise has changed."""
    build()
    changed = '"""Count.\n\nMinutes: 16\n"""\n'
    items, *_ = build(**{"exercises/ex2_2.py": changed})
    assert items[1].text.strip().endswith(", 16 minutes")


def test_an_exercise_that_the_notebook_lacks_fails_the_build(build):
    """Its warning names the heading that is missing."""
    _, warnings, _ = build(**{"notebooks/ch2_two.md": "# N\n\n## Exercise 2.1 - R\n"})
    assert "no heading that begins with 'Exercise 2.2 - '" in warnings
    assert "no heading that begins with 'Exercise 2.1 - '" not in warnings


def test_a_page_without_exercises_cannot_list_them(build):
    """A chapter without any, and a page that is no chapter."""
    for page in "book/ch3_three.md", "book/app_x.md":
        _, warnings, _ = build(**{page: LIST})
        assert f"there are no exercises of {page[5:-3]}" in warnings
