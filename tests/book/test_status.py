"""The status page admits changes, skips and failures, and all of the book has run."""

import doctest
import json
import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat import v4

from allranks.base.paths import ROOT
from book._ext.runs import executed, inputs, replayed, status
from book._tools import execute


def test_every_notebook_script_and_specimen_ran_as_it_is_now():
    """No file is new, changed since its last run, or failed in it."""
    runs = executed.load(ROOT)
    ends = {name: executed.verdict(ROOT, name, runs) for name in executed.files(ROOT)}
    assert len(ends) > 60
    wrong = {name: end for name, end in ends.items() if end != executed.GOOD}
    assert not wrong, "make notebooks, or execute.py with their names, runs them"


def test_each_script_is_run_by_its_chapters_page():
    """A script that its page doesn't run would never have a recorded run."""
    pages = sorted(ROOT.glob("book/*.md"))
    run = {name for page in pages for name in execute.scripts(page)}
    scripts = *ROOT.glob("scripts/[cs]*_*.py"), *ROOT.glob("scripts/draft_*.py")
    assert run == {path.name for path in scripts}


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    """Return a book of one notebook, one page and its script."""
    for folder in ("book/_data", "book/_runs", "notebooks", "scripts", "errata"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "scripts/ch9_x.py").write_text("print('[rank 0/3] hello')\n")
    page = "# X\n\n```{run} python scripts/ch9_x.py\n```\n"
    (tmp_path / "book/ch9_x.md").write_text(page)
    notebook = v4.new_notebook(
        cells=[v4.new_markdown_cell("words"), v4.new_code_cell("print(1)")]
    )
    nbformat.write(notebook, tmp_path / "notebooks/ch9_x.ipynb")
    monkeypatch.setattr(execute, "ROOT", tmp_path)
    monkeypatch.setattr(execute, "RUNS", tmp_path / "book/_runs")
    monkeypatch.setattr(execute.commands, "ROOT", tmp_path)
    return tmp_path


def verdict(tree: Path, name: str) -> str:
    """Return what the status page would say about a file."""
    return executed.verdict(tree, name, executed.load(tree))


def test_a_run_is_recorded_and_an_edit_undoes_it(tree):
    """An edit of a notebook's code undoes its run, but one of its text doesn't."""
    notebook = tree / "notebooks/ch9_x.ipynb"
    name = "notebooks/ch9_x.ipynb"
    assert verdict(tree, name) == "never run"
    execute.watched(notebook, execute.record_notebook)
    assert verdict(tree, name) == "passed"
    run = executed.load(tree)[name]
    assert run["torch"].startswith("2.")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"])
    assert run["seconds"] > 0
    text = notebook.read_text()
    notebook.write_text(text.replace("words", "other words"))
    assert verdict(tree, name) == "passed"
    notebook.write_text(text.replace("print(1)", "print(2)"))
    assert verdict(tree, name) == "changed since"


def test_a_page_records_its_scripts(tree):
    """A page's run records each script's outcome and world size."""
    execute.record(tree / "book/ch9_x.md")
    run = executed.load(tree)["scripts/ch9_x.py"]
    assert run["outcome"] == "passed" and run["world_sizes"] == [3]
    (tree / "scripts/ch9_x.py").write_text("print('1 ok, 2 skip')\n")
    assert verdict(tree, "scripts/ch9_x.py") == "changed since"
    execute.record(tree / "book/ch9_x.md")
    assert verdict(tree, "scripts/ch9_x.py") == "skips"
    (tree / "scripts/ch9_x.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(ValueError, match="exit code 3"):
        execute.record(tree / "book/ch9_x.md")
    assert verdict(tree, "scripts/ch9_x.py") == "failed"


def test_a_row_says_when_it_was_last_replayed(tree):
    """A script has its page's day, and what was never replayed has none."""
    notebook, page = "notebooks/ch9_x.ipynb", "book/ch9_x.md"
    execute.watched(tree / notebook, execute.record_notebook)
    execute.record(tree / page)
    now = replayed.digests(tree)
    assert now.keys() == {notebook, page}
    replayed.write(tree, {page: now[page]})
    rows = {name: cells for name, *cells in status.rows(tree)}
    day = replayed.load(tree)[page]["date"]
    assert rows["scripts/ch9_x.py"][:3] == ["passed", day, day]
    assert rows[notebook][:3] == ["passed", day, "–"]


def test_a_replay_is_due_when_its_inputs_change(tree):
    """Those are the code, what it imports, its record, and the pinned versions."""
    notebook, page = "notebooks/ch9_x.ipynb", "book/ch9_x.md"
    edits = {
        "scripts/ch9_x.py": ("import allranks.ring\n", {page}),
        "allranks/ring.py": ("W = 4\n", {page}),
        "book/_runs/python-scripts-ch9_x.py.txt": ("$ x\n", {page}),
        "requirements.txt": ("torch==2.13.0  # why\n", {notebook, page}),
    }
    (tree / "allranks").mkdir()
    for name, (text, due) in edits.items():
        before = replayed.digests(tree)
        (tree / name).write_text(text)
        after = replayed.digests(tree)
        assert {n for n in after if after[n] != before[n]} == due, name
    (tree / "requirements.txt").write_text("torch==2.13.0  # another reason\n")
    assert replayed.digests(tree) == after


def test_only_what_exists_is_recorded_as_replayed():
    """Each name in the record is replayed by some test."""
    assert replayed.load(ROOT).keys() <= replayed.digests(ROOT).keys()


def test_a_failing_notebook_is_recorded_as_failed(tree):
    """A failing notebook is recorded, and the exception is raised."""
    path = tree / "notebooks/ch9_x.ipynb"
    path.write_text(path.read_text().replace("print(1)", "1/0"))
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        execute.watched(path, execute.record_notebook)
    assert verdict(tree, "notebooks/ch9_x.ipynb") == "failed"


def test_what_is_gone_leaves_the_records(tree):
    """Writing a record drops those of files that no longer exist."""
    gone = {"scripts/ch8_gone.py": {"digest": ""}}
    (tree / executed.DATA).write_text(json.dumps(gone))
    executed.Run.of(tree, tree / "scripts/ch9_x.py").write(tree)
    assert list(executed.load(tree)) == ["scripts/ch9_x.py"]


@pytest.mark.parametrize(
    ("output", "skips"),
    [
        ("2 skip", True),
        ("0 skip", False),
        ("SKIPPED: no GPU", True),
        ("skipper", False),
    ],
)
def test_a_skip_is_told_by_its_words(output, skips):
    """A skip is recognised in any output, but "0 skip" is none."""
    run = executed.Run("x", "")
    run.add(1.0, "", output)
    assert (run.outcome == executed.SKIPPED) == skips


def test_the_page_lists_every_file_and_bolds_what_is_not_in_order(site):
    """Each notebook and script has a row, and each folder of specimens shares one."""
    path = site / "book" / "app_status.html"
    page = BeautifulSoup(path.read_text("utf8"), "html.parser")
    table = page.select_one("table.status-table")
    rows = [[td.get_text(" ", strip=True) for td in tr("td")] for tr in table("tr")]
    shown = {row[0]: row for row in rows if row}
    folders = "errata/", "clinic/"
    single = [n for n in executed.files(ROOT) if not n.startswith(folders)]
    assert set(single) < set(shown)
    assert len(shown) == len(single) + len(folders)
    for tr in table("tr")[1:]:
        bold = tr("td")[1].strong is not None
        end = tr("td")[1].get_text(strip=True)
        assert bold != bool(re.fullmatch(r"(\d+ )?passed", end))


REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a.TestPage" name="x" time="1.5"/>
<testcase classname="tests.test_a" name="y" time="2"><skipped message="z"/></testcase>
<testcase classname="notebooks.b.ipynb" name="Cell 0" time="3"/>
</testsuite></testsuites>"""


def test_a_skipped_test_counts_as_a_failure(tmp_path):
    """In the table from pytest's report, a file with a skipped test has failed."""
    (tmp_path / "tests.xml").write_text(REPORT)
    assert status.tests(tmp_path / "tests.xml") == [
        ["notebooks.b.ipynb", "passed", "1", "0", "0", "3 s"],
        ["tests.test_a", "failed", "2", "0", "1", "4 s"],
    ]


def test_examples_in_docstrings_hold():
    """Every example in the module gives what it says."""
    result = doctest.testmod(executed)
    assert result.attempted
    assert not result.failed


def test_a_file_of_tests_needs_what_it_imports_starts_names_and_lists():
    """Its inputs are the modules, scripts, pages and records that it works with."""
    tree = inputs.Tree(ROOT)
    needs = tree.needs("tests/test_ch5_ddp.py")
    assert needs > {"book/ch5_ddp.md", "notebooks/ch5_ddp.ipynb", "scripts/ch5_ddp.py"}
    assert needs > {
        "scripts/job.py",
        "allranks/launch/torchrun.py",
        "tests/conftest.py",
    }
    seeds = tree.needs("tests/test_ch9_seeds.py")
    assert not {n for n in seeds if "vgpu" in n}
    # It starts what a page shows, and doesn't read the page: prose changes nothing.
    starts = tree.needs("tests/test_ch7_broadcast.py")
    assert "notebooks/ch7_collectives.ipynb" in starts
    assert "book/ch7_collectives.md" not in starts
    assert "allranks/live/worker.py" in tree.needs("clinic/saved-view.py")
    assert "allranks/guard/guard.py" in tree.needs("tests/allranks/guard/test_guard.py")
    lists_all = tree.needs("tests/allranks/live/test_again.py")
    assert {n for n in executed.files(ROOT) if n.startswith("notebooks")} <= lists_all
    rehearsed = tree.needs("tests/allranks/rehearse/test_styles.py")
    assert rehearsed > {
        "allranks/rehearse/recorder.py",
        "allranks/vgpu/tensor.py",
        "tests/allranks/rehearse/scripts/gpt.py",
    }
    figure = tree.needs("tests/book/explorables/test_batches.py")
    assert "allranks/topics/batches/figure.js" in figure
