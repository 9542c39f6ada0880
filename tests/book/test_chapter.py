"""make chapter writes a chapter or a draft that passes as it is."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.base.paths import ROOT
from book._ext.chapters import chapter_map, draft
from book._ext.site import links
from book._tools import chapter

NUMBER = len(chapter.numbered(ROOT)) + 1
NAME = f"ch{NUMBER}_mean_of_all_ranks_here"[: chapter.LONGEST]  # the longest
DRAFT = "draft_of_ranks"
COPIED = (
    *("allranks", "book", "notebooks", "scripts", "_toc.yml", "pyproject.toml"),
    *("tests/conftest.py", "tests/replays.py", "tests/test_structure.py"),
)
RULES = f"{NAME} or ch{NUMBER} or {DRAFT} or table_of_contents or stands_in_two"
RULES += " or record_belongs"
pytestmark = pytest.mark.timeout(240)  # the first test waits for the chapter
LEFT_OUT = shutil.ignore_patterns("__pycache__", "_build", ".ipynb_checkpoints")


class Tree:
    """A copy of the book without its clinic, in which programs can run."""

    def __init__(self, root: Path):
        self.root = root
        for name in COPIED:
            target = root / name
            target.parent.mkdir(exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target, ignore=LEFT_OUT)
            else:
                shutil.copy(ROOT / name, target)

    def run(self, *command: str | Path) -> str:
        """Run a program that sees only this tree; return what it printed."""
        environ = os.environ | {"PYTHONPATH": str(self.root)}
        done = subprocess.run(
            command,
            cwd=self.root,
            env=environ,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Tree:
    """Return a tree to which make chapter has added a chapter and a draft."""
    tree = Tree(tmp_path_factory.mktemp("book"))
    tool = tree.root / "book" / "_tools" / "chapter.py"
    title = f"{'The mean of what all ranks here hold':.{chapter.MOST}}"
    for name in NAME, DRAFT:
        written = tree.run(sys.executable, tool, name, title).splitlines()
        for file in f"book/{name}.md", f"scripts/{name}.py", f"tests/test_{name}.py":
            assert file in written
        assert (f"notebooks/{name}.ipynb" in written) == (name == NAME)
    return tree


def test_what_it_writes_passes_its_own_test_and_the_rules(tree):
    """The chapter and the draft pass their own tests and the structure tests."""
    files = (
        *(f"tests/test_{name}.py" for name in (NAME, DRAFT)),
        "tests/test_structure.py",
    )
    pytest_ = sys.executable, "-m", "pytest", "-q", "-n", "0", "-rA", "-k", RULES
    passed = tree.run(*pytest_, *files)
    for rule in (
        "three_doors",
        "table_of_contents",
        "canonical",
        "two_screens",
        "stands_in_two",
    ):
        assert any(rule in line for line in passed.splitlines() if "PASSED" in line)
    of_draft = [line for line in passed.splitlines() if DRAFT in line]
    assert len([line for line in of_draft if "PASSED" in line]) >= 9, passed
    assert passed.count("PASSED") >= 22, passed


def test_what_it_writes_has_the_style(tree):
    """Ruff accepts the new files, check and format, with pyproject.toml's settings."""
    files = [f"notebooks/{NAME}.ipynb"]
    for name in NAME, DRAFT:
        files += [f"scripts/{name}.py", f"tests/test_{name}.py"]
    for words in (["check"], ["format", "--check"]):
        tree.run(sys.executable, "-m", "ruff", *words, *files)


def test_page_and_notebook_have_run(tree):
    """Both runs are recorded as passed, and their outputs hold both ranks' mean."""
    runs = json.loads((tree.root / "book/_data/status.json").read_text("utf8"))
    for file in (f"scripts/{NAME}.py", f"notebooks/{NAME}.ipynb"):
        assert (runs[file]["outcome"], runs[file]["world_sizes"]) == ("passed", [2])
    for name in NAME, DRAFT:
        (record,) = tree.root.glob(f"book/_runs/*{name}*.txt")
        assert record.read_text("utf8").count("[0.5, 1.5, 2.5] on average") == 2
    notebook = (tree.root / f"notebooks/{NAME}.ipynb").read_text("utf8")
    assert "ranks 0–1: tensor([1.5000, 1.5000])" in notebook


def test_the_pages_build_without_a_warning(tree):
    """Their directives and references work, and only the draft says that it is one."""
    pages = f"book/{NAME}", f"notebooks/{NAME}", f"book/{DRAFT}"
    parts = "runs.run", "site.lexers", "chapters.draft"
    (tree.root / "conf.py").write_text(
        "import sys\n"
        "sys.path.insert(0, '.')\n"
        f"extensions = {['myst_nb', *(f'book._ext.{part}' for part in parts)]}\n"
        "nb_execution_mode = 'off'\n"
        "html_theme = 'basic'\n"
        f"include_patterns = {['index.md', *(f'{page}.*' for page in pages)]}\n"
    )
    contents = "# Contents\n\n```{toctree}\n" + "\n".join(pages) + "\n```\n"
    (tree.root / "index.md").write_text(contents)
    sphinx = sys.executable, "-m", "sphinx", "-W", "-n", "-q", "-b", "html"
    tree.run(*sphinx, ".", "_build")
    for name in NAME, DRAFT:
        page = (tree.root / f"_build/book/{name}.html").read_text("utf8")
        assert "mean_over_ranks" in page
        assert (f"../notebooks/{name}.html" in page) == (name == NAME)
        assert (draft.WORDS in page) == (name == DRAFT)


def test_the_map_and_the_course_leave_a_draft_out(tree):
    """Both read the chapters of chapter_map, which has the chapter, in its part."""
    parts = chapter_map.read(tree.root)
    listed = [one.name for part in parts.values() for one in part]
    assert NAME in listed and DRAFT not in listed and "Drafts" not in parts
    assert chapter.numbered(tree.root)[-1] == NAME
    assert links.files(tree.root, f"book/{DRAFT}") == [f"scripts/{DRAFT}.py"]
    contents = (tree.root / "_toc.yml").read_text("utf8")
    _, drafts = contents.split("- caption: Drafts\n    chapters:\n")  # one part
    assert drafts.endswith(f"      - file: book/{DRAFT}\n")


@pytest.mark.parametrize(
    ("name", "title", "why"),
    [
        ("", "Mean", f"NAME=: write ch{NUMBER}_ (or draft_) and the field's term"),
        ("mean", "Mean", f"NAME=mean: write ch{NUMBER}_ (or draft_)"),
        ("draft_", "Mean", f"NAME=draft_: write ch{NUMBER}_"),
        (f"ch{NUMBER}_Mean", "Mean", f"write ch{NUMBER}_"),
        (f"../ch{NUMBER}_mean", "Mean", f"write ch{NUMBER}_"),
        (
            "ch4_mean",
            "Mean",
            f"ch4_ranks exists, so the next name begins with ch{NUMBER}_",
        ),
        (f"ch{NUMBER + 1}_mean", "Mean", f"the last chapter is ch{NUMBER - 1}_"),
        (f"{NAME}s", "Mean", f"at most {chapter.LONGEST} letters"),
        (NAME, "", "TITLE='': write 2 to"),
        (NAME, 'A "mean"', "write 2 to"),
        (NAME, "M" * (chapter.MOST + 1), f"write 2 to {chapter.MOST} letters"),
    ],
)
def test_what_cannot_be_a_chapter_is_refused_in_a_sentence(name, title, why, capsys):
    """The refusal has exit code 2 and comes before anything is written."""
    before = (ROOT / "_toc.yml").read_bytes()
    with pytest.raises(SystemExit) as end:
        chapter.main([name, title])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert why in said and len(said.splitlines()) == 1
    assert (ROOT / "_toc.yml").read_bytes() == before
    assert not [*ROOT.glob(f"*/ch{NUMBER}_*")]


def test_the_tests_that_contributing_names_exist():
    """CONTRIBUTING.md names tests that a new chapter fails first, and they exist."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf8")
    named = re.findall(
        r"^\| `(tests/[\w/]+\.py)::(?:(\w+)::)?(\w+)`", text, re.MULTILINE
    )
    assert len(named) == 7
    for file, group, test in named:
        code = (ROOT / file).read_text("utf8")
        assert f"def {test}(" in code
        assert not group or f"class {group}:" in code


def test_a_title_may_have_so_many_letters():
    """The longest title that the tool announces is one that it takes."""
    assert chapter.fault(ROOT, NAME, "M" * chapter.MOST) == ""
