"""The book runs where the page says: magics work without JupyterLab, for example."""

import re
import subprocess
import sys

import nbformat
from nbformat import v4

from allranks.base.paths import ROOT
from allranks.live import magic

PAGE = (ROOT / "book" / "app_where.md").read_text("utf8")
CELLS = [
    "%load_ext allranks",
    "%ranks 2",
    "%%ranks\nx = torch.ones(1) * (rank + 1)\ndist.all_reduce(x)\nprint(int(x))",
    "%ranks stop",
]


def test_magics_work_in_a_terminal_without_jupyter(tmp_path):
    """IPython alone runs the magics in a terminal, without a server or a kernel."""
    path = tmp_path / "a.ipynb"
    nbformat.write(v4.new_notebook(cells=[v4.new_code_cell(c) for c in CELLS]), path)
    command = [sys.executable, "-m", "IPython", "--colors=nocolor", path]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "ranks 0–1: 3" in done.stdout


def test_every_launch_link_has_its_section():
    """Each place that pages offer has a section, and a row that says what was tried."""
    for place in ("JupyterLab", "VS Code", "Colab", "Binder", "Codespaces"):
        assert re.search(rf"^## {place}$", PAGE, re.MULTILINE), place
        assert re.search(rf"^\| {place}\b.*\|$", PAGE, re.MULTILINE), place


def test_macs_ranks_are_spawned_and_linuxs_forked():
    """The package starts ranks on macOS and Linux as the page says."""
    text = (ROOT / "allranks" / "live" / "server.py").read_text("utf8")
    assert 'return "forkserver" if sys.platform == "linux" else "spawn"' in text
    assert 'else "lo0"' in (ROOT / "allranks/launch/torchrun.py").read_text("utf8")


def test_ci_runs_where_the_page_says_ci_does():
    """CI runs on macOS, as the page says."""
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text("utf8")
    assert "macos-latest" in workflow


def test_each_line_of_the_table_of_commands_is_understood():
    """What the page lists is what the magics take, and no option is missing."""
    table = PAGE.partition("| you write |")[2].partition("\n\n")[0]
    lines = re.findall(r"`(%\S[^`]*)`", table.replace("`%ranks status`, ", ""))
    parsers = {"%ranks": magic.LINE, "%%ranks": magic.CELL, "%push": magic.PUSH}
    parsers |= {"%pull": magic.PULL, "%debug_rank": magic.DEBUG}
    told = set()
    for line in lines:
        name, *words = line.split()
        parsers[name].parse_args(words)  # raises if it does not know one of them
        told |= {name, *(word for word in words if word.startswith("--"))}
    assert set(parsers) <= told
    options = {
        o for p in parsers.values() for a in p._actions for o in a.option_strings
    }
    assert options - told <= {
        "--device",
        "--on",
    }  # the one is GPUs', the other in words
