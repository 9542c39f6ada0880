"""``make quick`` runs the tests that a change touches, and no others."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.quick.__main__ import choose, report
from tests.quick.inputs import ROOT, Tree

FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
    "requirements.txt": "",
    ".gitignore": "_build\n__pycache__\n",
    "tests/conftest.py": "",
    "pack/__init__.py": "",
    "pack/sums.py": "from pack import base\n",
    "pack/base.py": "",
    "pack/lonely.py": "",
    "data.txt": "4",
    "program.py": "print(1)",
    "tests/test_sums.py": "def test_sums():\n    import pack.sums\n",
    "tests/test_data.py": "def test(): assert open('data.txt').read() == '4'\n",
    "tests/test_start.py": """import subprocess, sys
def test_start():
    assert subprocess.run([sys.executable, "program.py"]).returncode == 0
""",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """Return a checkout of a small project that has this plugin, after its tests."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "tests/quick").mkdir()
    for name in ("inputs", "plugin", "__main__"):
        shutil.copy(ROOT / f"tests/quick/{name}.py", folder / "tests/quick")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    run(folder, *("-m", "pytest", "-q", "-p", "tests.quick.plugin", "tests"))
    return folder


@pytest.fixture
def tree(project, tmp_path) -> Path:
    """Return a copy of that project."""
    return Path(shutil.copytree(project, tmp_path / "tree"))


def run(tree: Path, *command: str) -> subprocess.CompletedProcess:
    """Run Python in the small project, without this process's PYTHONPATH."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    words = [sys.executable, *command]
    return subprocess.run(words, cwd=tree, env=kept, capture_output=True, text=True)


def quick(tree: Path, *flags: str) -> str:
    """Return the first line that ``make quick`` prints; ``--list`` runs no tests."""
    return run(tree, "tests/quick", *flags).stdout.partition("\n")[0]


@pytest.mark.parametrize(
    ("name", "touched"),
    [
        ("pack/base.py", 1),  # imported by what a test imports
        ("data.txt", 1),  # opened
        ("program.py", 1),  # started
        ("tests/test_data.py", 1),
        ("requirements.txt", 3),
        ("pack/lonely.py", 0),
    ],
)
def test_what_a_test_reads_touches_it(tree, name, touched):
    """A file touches the tests that read it by its content, not by its date."""
    os.utime(tree / name)
    assert quick(tree, "--list") == "0 of 3 tests are touched; 0 of them run now."
    with open(tree / name, "a") as file:
        file.write("\n")
    said = f"{touched} of 3 tests are touched; {touched} of them run now."
    assert quick(tree, "--list") == said


def test_what_fails_runs_until_it_passes(tree):
    """A failing test runs every time until it passes, and a new file of tests runs."""
    (tree / "data.txt").write_text("5")
    for _ in range(2):
        assert quick(tree).startswith("1 of 3 tests are touched")
    (tree / "data.txt").write_text("4")
    (tree / "tests/test_new.py").write_text("def test_new(): pass\n")
    assert quick(tree).startswith("2 of 4 tests are touched; 2 of them")
    assert quick(tree).startswith("0 of 4 tests are touched")


def test_without_a_memory_a_sentence_says_what_to_do(tree):
    """If no test has passed yet, none can be left out, so make test is needed."""
    (tree / "_build/passed.json").unlink()
    ended = run(tree, "tests/quick")
    assert ended.returncode == 1
    assert ended.stderr == "No test has passed here yet: make test runs all of them.\n"


def test_without_git_the_tests_run_all_the_same(tree):
    """Without git, as in an unpacked archive, tests run but nothing is remembered."""
    shutil.rmtree(tree / ".git")
    (tree / "_build/passed.json").unlink()
    ended = run(tree, *("-m", "pytest", "-q", "-p", "tests.quick.plugin", "tests"))
    assert ended.returncode == 0 and "3 passed" in ended.stdout
    assert not (tree / "_build/passed.json").exists()
    ended = run(tree, "tests/quick")
    assert ended.returncode == 1 and len(ended.stderr.splitlines()) == 1


def test_what_takes_too_long_is_left_out_and_named():
    """The shortest files are chosen first, each as a whole, and the rest is named."""
    touched = {"a.py::x": 1.0, "b.py::x": 5.0, "b.py::y": 4.0, "c.py::x": 30.0}
    chosen = choose(touched, 20)
    assert chosen == {"a.py::x", "b.py::x", "b.py::y"}
    page = {"tests/book/test_pages.py::x": 16.0}  # tests of one page come first
    assert choose(touched | page, 20) == {*page, "a.py::x"}
    assert choose({"tests/test_errata.py::x": 99.0} | touched, 20) == chosen
    assert report(touched, chosen, 9) == (
        "4 of 9 tests are touched; 3 of them run now. "
        "Left out, make test runs them:\n    c.py (30 s)"
    )


def edited(name: str, old: bytes, new: bytes) -> Tree:
    """Return this tree as it would be after an edit."""
    tree = Tree()
    text = tree.bytes(name)
    assert old in text
    tree.bytes = lambda other: text.replace(old, new) if other == name else read(other)
    read = Tree().bytes
    return tree


PAGE = "book/ch5_ddp.md"
COMMANDS = "tests/book/test_commands.py::test[ch5_ddp.md]"
NOTEBOOK = "notebooks/ch5_ddp.ipynb"


@pytest.mark.parametrize(
    ("name", "old", "new", "test", "touched"),
    [
        (PAGE, b"**After", b"After", COMMANDS, False),
        (PAGE, b"{run} python", b"{run} python3", COMMANDS, True),
        ("book/ch4_ranks.md", b"{run} ", b"{run}  ", COMMANDS, False),
        ("scripts/ch5_ddp.py", b"import", b"import  ", COMMANDS, True),
        (NOTEBOOK, b"**Predict", b"*Predict", f"{NOTEBOOK}::Cell 1", False),
        (NOTEBOOK, b"import", b"import  ", f"{NOTEBOOK}::Cell 1", True),
    ],
)
def test_of_a_page_commands_count_and_of_a_notebook_cells(
    name, old, new, test, touched
):
    """Prose may change without touching the tests of a page's commands or cells."""
    reads = [PAGE, "book/ch4_ranks.md", "scripts/ch5_ddp.py"]
    before, after = Tree(), edited(name, old, new)
    assert (before.state(test, reads) != after.state(test, reads)) == touched


def test_a_test_of_one_file_depends_on_no_other():
    """A test whose parameter names a case of the clinic depends on no other case."""
    tree = Tree()
    slug = "ddp-sum-loss"
    test = f"tests/clinic/test_live.py::test_x[{slug}-4]"
    cases = sorted(f for f in tree.files if f.startswith("clinic/"))
    found = tree.inputs(test, cases)
    assert {f for f in found if f.startswith("clinic/") and f.endswith(".py")} == {
        f"clinic/{slug}.py"
    }
    assert len(cases) > 100


def test_a_visited_page_depends_on_no_other_nor_on_the_index(tmp_path):
    """Only search reads the index of all pages, which an edit of any page rewrites."""
    built = ["_build/html/book/a.html", "_build/html/book/b.html"]
    built += ["_build/html/_static/search_index.js", "_build/html/_static/all.css"]
    tests = "tests/book/test_pages.py"
    for name in (*built, tests):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# in a browser")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    tree = Tree(tmp_path)
    page = tree.inputs(f"{tests}::test_x[book/a]", [])
    assert page == {tests, built[0], built[3]}
    assert tree.inputs(f"{tests}::test_search[http]", []) == {tests, *built}
