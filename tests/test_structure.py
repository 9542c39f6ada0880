"""Page, notebook and script keep to the rules: one chapter, and each of them short."""

import ast
import itertools
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import nbformat
import pytest
import yaml

from allranks.base.paths import ROOT
from book._ext.chapters import chapter_map
from book._ext.front import front
from book._ext.runs import records
from book._tools import notebooks

RUNS = ROOT / "book" / "_runs"
DRAFTS = sorted(ROOT.glob("scripts/draft_*.py"))
SCRIPTS = [*sorted(ROOT.glob("scripts/[cs]*_*.py")), *DRAFTS]  # ch1_…, start_…
ALL_SCRIPTS = sorted({*ROOT.glob("scripts/[a-z]*.py")} - {*DRAFTS})
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
PAGES = sorted(ROOT.glob("book/*.md"))
SECTIONS = [page for page in PAGES if chapter_map.SECTION.fullmatch(page.stem)]
IMPORTS = {*sys.stdlib_module_names, "torch", "numpy", "safetensors", "sklearn"}


def name(path: Path) -> str:
    """Return a test's id: the file's name."""
    return path.name


def chapter(stem: str) -> str:
    """Return the chapter of a name: ``ch5`` for ``ch5_ddp_spawn``; a draft's name."""
    return stem if stem.startswith("draft_") else stem.partition("_")[0]


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
class TestScript:
    """A reader opens one file, and learns one thing from it."""

    def test_needs_nothing_else(self, script):
        """It imports torch, its data, the standard library and files beside it."""
        found = set()
        for node in ast.walk(ast.parse(script.read_text("utf8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add("." if node.level else node.module.partition(".")[0])
        assert found <= {*IMPORTS, *(path.stem for path in ALL_SCRIPTS)}

    def test_fits_on_two_screens(self, script):
        """It has 150 lines at most, of 79 columns, since the pages print them."""
        lines = script.read_text("utf8").splitlines()
        assert len(lines) <= 150
        assert max(map(len, lines)) <= 79

    def test_says_what_it_is_and_how_to_run_it(self, script):
        """Its docstring is a sentence, then commands that the chapter's page runs.

        The page may add flags: it is built on machines that are never quiet.
        """
        text = ast.get_docstring(ast.parse(script.read_text("utf8")))
        number = re.match(r"ch(\d+)_", script.stem)
        kind = f"Chapter {number[1]}" if number else script.stem.partition("_")[0]
        kind = {"draft": "Draft", "start": "Start here"}.get(kind, kind)
        assert re.match(rf"{kind} - [^\n]+\.\n", text)
        stated = re.findall(r"^    ((?:torchrun|python) .+)$", text, re.MULTILINE)
        assert stated, "no command in the docstring"
        run = [
            f"{command.line} "
            for page in PAGES
            if chapter(page.stem) == chapter(script.stem)
            for command in records.commands(page.read_text("utf8"))
        ]
        for line in stated:
            assert any(one.startswith(f"{line} ") for one in run), line


def test_the_scripts_stay_small():
    """A chapter has 660 lines on average, and what a job owes its user has 200."""
    count = {path.stem: len(path.read_text().splitlines()) for path in ALL_SCRIPTS}
    chapters = {chapter(name) for name in count if re.match(r"ch\d", name)}
    assert sum(count.values()) <= 660 * len(chapters)
    assert count["job"] <= 200


def test_nothing_stands_in_two_scripts():
    """No function of six lines or more does, but what two chapters teach.

    How ranks join a group is the lesson of chapter 4, and of DDP in chapter 5.
    """
    places = defaultdict(list)
    for path in ALL_SCRIPTS:
        for node in ast.walk(ast.parse(path.read_text("utf8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                body = ast.unparse(node)
                if body.count("\n") >= 5:
                    places[body].append(f"{path.stem}.{node.name}")
    twice = [sorted(found) for found in places.values() if len(found) > 1]
    assert twice == [["ch4_ranks.setup", "ch5_ddp.setup", "ch5_ddp_spawn.setup"]]


@pytest.mark.parametrize(
    "number", sorted({chapter(s.stem) for s in SCRIPTS} - {"start"})
)
def test_a_chapter_has_three_doors_and_a_test(number):
    """One stem names page, notebook, script and test; its pages have all variants.

    Only a draft has no notebook.
    """
    pages = [p for p in PAGES if chapter(p.stem) == number]
    stems = [p.stem for p in pages if p not in SECTIONS]
    assert len(stems) == 1, f"{number} needs exactly one page that is no section page"
    stem = stems[0]
    paths = ["scripts/{}.py", "tests/test_{}.py"]
    paths += [] if stem.startswith("draft_") else ["notebooks/{}.ipynb"]
    for path in paths:
        assert (ROOT / path.format(stem)).is_file(), path.format(stem)
    text = "".join(page.read_text("utf8") for page in pages)
    variants = [s.name for s in SCRIPTS if chapter(s.stem) == number]
    assert [v for v in variants if f"scripts/{v}" not in text] == []


@pytest.mark.parametrize("page", SECTIONS, ids=name)
def test_a_section_page_is_a_part_of_its_chapter(page):
    """It stands below its chapter, before the notebook, and is no chapter itself.

    The chapter's page leads to it, and opening and exercises are there.
    """
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))
    entries = {
        Path(entry["file"]).name: entry
        for part in toc["parts"]
        for entry in part["chapters"]
    }
    listed = [place for part in chapter_map.read(ROOT).values() for place in part]
    assert page.stem not in [place.name for place in listed]
    (place,) = [one for one in listed if page.stem in one.sections]
    assert place.number == chapter(page.stem).removeprefix("ch")
    below = [entry["file"] for entry in entries[place.name]["sections"]]
    wanted = [f"book/{one}" for one in place.sections]
    assert below == [*wanted, f"notebooks/{place.name}"]
    text, above = (
        (ROOT / f"book/{one}.md").read_text("utf8") for one in (page.stem, place.name)
    )
    assert f"{{ref}}`{page.stem}`" in above and text.count("**After this page**") == 1
    assert "{opening}" not in text and "{exercises}" not in text


def test_the_table_of_contents_lists_what_exists_and_nothing_else():
    """Every page and notebook is listed exactly once."""

    def files(entry: dict) -> list[str]:
        keys = "parts", "chapters", "sections"
        below = itertools.chain(*(entry.get(key, ()) for key in keys))
        own = [entry[key] for key in ("root", "file") if key in entry]
        return own + [file for child in below for file in files(child)]

    listed = files(yaml.safe_load((ROOT / "_toc.yml").read_text("utf8")))
    exist = [p.relative_to(ROOT).with_suffix("") for p in [*PAGES, *NOTEBOOKS]]
    assert sorted(listed) == sorted(map(str, exist))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
class TestNotebook:
    """A notebook is committed executed, in the bytes that a second run writes."""

    def test_is_executed_and_canonical(self, notebook):
        """It is as ``make notebooks`` writes it, with no trace of a machine."""
        assert notebooks.check(notebook) == []

    def test_has_short_cells_and_asks_first(self, notebook):
        """Its code cells have at most 15 lines, and it asks for a prediction."""
        cells = nbformat.read(notebook, as_version=4).cells
        for cell in cells:
            lines = cell.source.splitlines()
            assert cell.cell_type != "code" or len(lines) <= 15, cell.source
        assert any("**Predict**" in cell.source for cell in cells)


DRIFTS = re.compile(
    r"^:(?:lines|emphasize-lines|lineno-match):|\b(?:see|in|on) lines? \d", re.M
)
FENCED = re.compile(r"^(`{3,}|:{3,})(?!\{run\})[^\n]*\n(.*?)^\1[ \t]*$", re.M | re.S)
LAUNCH = re.compile(r"^\s*\$? ?(?:torchrun|python) .*$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name)
class TestPage:
    """A page shows commands that were run, and stays right when the code moves."""

    def test_points_at_code_by_name(self, page):
        """No page refers to line numbers, which would drift unnoticed."""
        assert DRIFTS.search(page.read_text("utf8")) is None

    def test_its_front_matter_has_only_what_is_read(self, page):
        """A misspelled field would be ignored in silence."""
        given = front(page)
        fields = "myst", "glossary", "said", "course", "least_ranks"
        assert given.keys() <= {*fields}
        assert given.get("course", {}).keys() <= {"slot", "who"}

    def test_shows_no_command_that_was_not_run(self, page):
        """A command is in a {run} block, unless it names other machines ($HOST)."""
        text = page.read_text("utf8")
        blocks = [match[2] for match in FENCED.finditer(text)]
        shown = [line for block in blocks for line in LAUNCH.findall(block)]
        assert [line for line in shown if "$" not in line.strip().lstrip("$")] == []


def test_every_record_belongs_to_a_page():
    """There is no recorded output of a command that no page states."""
    stated = {c.record for p in PAGES for c in records.commands(p.read_text("utf8"))}
    assert {path.name for path in RUNS.glob("*")} == stated


def test_a_folder_whose_files_share_what_is_expensive_is_a_package():
    """Else each file would have its own server and browser."""
    for folder in "tests/lab", "tests/book/explorables":
        assert (ROOT / folder / "__init__.py").exists()


def tracked() -> dict[str, str]:
    """Return the text of each file of the repository that has one, by its path."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout: no list of the files that are ours")
    paths = [path for path in listed.stdout.split("\0") if (ROOT / path).is_file()]
    data = {path: (ROOT / path).read_bytes() for path in paths}
    return {
        path: all_.decode("utf8") for path, all_ in data.items() if b"\0" not in all_
    }


def test_no_file_holds_a_path_of_one_machine():
    """Tracked files hold no path that is right on one machine only."""
    path = re.compile(rf"(?<![\w.])(?:{re.escape(str(ROOT))}|/home/\w+|/Users/\w+)/")
    assert [file for file, text in tracked().items() if path.search(text)] == []


OWN = re.compile(r"(?:.*/)?(?:test_)?(?:ch|ex)\d+_\w+\.\w+")  # a chapter's own file
NAMED = re.compile(r"\b(?:ch|ex)(\d+)_\w+")
TOUCHED = "_toc.yml", "CHANGELOG.md"  # by each chapter
EXAMPLES = 3  # so many chapters may any other file name
LISTS = {  # name more, for a reason
    "README.md": "says which chapter answers which question",
    "book/intro.md": "says what to read first",
    "book/start.md": "says where each thing is explained",
    "book/app_errata.md": "refers to what explains a claim",
    "allranks/diagnose/symptoms.toml": "refers to what explains a symptom",
    "tests/book/queries.json": "has queries, with the sections that answer them",
    "book/_data/": "is written by what runs the book",
}


def test_a_chapter_touches_its_own_files_the_contents_and_the_change_log():
    """What all chapters have is read off them, so that no list has to name a new one.

    A file that names a few gives examples, or belongs to what they explain.
    """
    texts = {path: text for path, text in tracked().items() if path not in TOUCHED}
    own = {
        Path(path).stem.removeprefix("test_") for path in texts if OWN.fullmatch(path)
    }
    many = {}
    for path, text in texts.items():
        chapters = {match[1] for match in NAMED.finditer(text) if match[0] in own}
        if len(chapters) > EXAMPLES and not OWN.fullmatch(path):
            many[path] = sorted(chapters, key=int)
    assert {path for path in many if not path.startswith((*LISTS,))} == set(), many
    used = {one for one in LISTS if any(path.startswith(one) for path in many)}
    assert {*LISTS} - used == set()  # an exception that none needs would hide a list
