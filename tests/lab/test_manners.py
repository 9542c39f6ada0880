"""Cells on ranks in a real JupyterLab: they speak, draw, and can be looked into."""

import re

import pytest
from playwright.sync_api import expect

from tests.lab.conftest import save_notebook

SLOW = """%%ranks
import time
print("first", rank // 2)
while not __import__("os").path.exists("seen"): time.sleep(0.02)
print("last", rank // 2)"""
BAR = """%%ranks
from tqdm import tqdm
for n in tqdm(range(40), desc="steps"): time.sleep(0.05)"""
FIGURES = """%%ranks
import matplotlib.pyplot as plt
plt.plot([0, rank // 2]);"""
FAILS = """%%ranks
def step(loss):
    if rank == 2: raise ValueError("diverged")
    dist.barrier()
step(100 + rank)"""


@pytest.mark.timeout(600)  # much more than it takes, for busy machines
def test_what_a_notebook_user_expects(opened, tmp_path):
    """One notebook, as a reader would use it."""
    cells = ["%load_ext allranks\n%ranks 3"]
    notebook = opened(save_notebook(tmp_path / "manners.ipynb", cells))
    cell = notebook.cells.nth(0)
    output = cell.locator(".jp-Cell-outputArea")
    assert "ranks 0–2 on cpu" in notebook.run(cell)
    speaks_while_it_runs(notebook, cell, output)
    redraws_a_bar_in_place(notebook, cell, output)
    shows_figures_beside_each_other(notebook, cell, output)
    keeps_variables_after_an_exception(notebook, cell)
    opens_a_debugger_on_the_rank_that_failed(notebook, cell, output)


def speaks_while_it_runs(notebook, cell, output) -> None:
    """Check that a line is on the page before the cell goes on to print the next."""
    notebook.write(cell, SLOW)
    notebook.start(cell)
    output.get_by_text("ranks 0–1: first 0\nrank 2: first 1").wait_for()
    assert cell.locator(".jp-InputPrompt").inner_text() == "[*]:"
    assert "last" not in output.text_content()
    (notebook.path.parent / "seen").touch()
    output.get_by_text("ranks 0–1: last 0").wait_for()
    notebook.idle()
    assert output.text_content().split("\n")[:2] == [  # by rank, when it is over
        "ranks 0–1: first 0",
        "ranks 0–1: last 0",
    ]


def redraws_a_bar_in_place(notebook, cell, output) -> None:
    """Check that a bar grows, and is one line for ranks that are level."""
    notebook.write(cell, BAR)
    notebook.start(cell)
    counts = set()
    while cell.locator(".jp-InputPrompt").inner_text() == "[*]:":
        text = output.text_content()
        assert len(text.splitlines()) <= 3, text  # no more than one line per rank
        counts |= set(re.findall(r"(\d+)/40 ", text))
        notebook.page.wait_for_timeout(50)
    assert len(counts) > 3, counts
    notebook.idle()
    assert re.fullmatch(r"ranks 0–2: steps: 100%.*40/40 .*\n", output.text_content())


def shows_figures_beside_each_other(notebook, cell, output) -> None:
    """Check that two different figures stand in a row, each under its ranks."""
    notebook.write(cell, FIGURES)
    notebook.run(cell)
    left, right = output.locator("figure").all()
    assert left.locator("figcaption").inner_text() == "ranks 0–1"
    assert right.locator("figcaption").inner_text() == "rank 2"
    assert all(f.locator("img").evaluate("i => i.naturalWidth") for f in (left, right))


def keeps_variables_after_an_exception(notebook, cell) -> None:
    """Check that a misspelled name costs nothing."""
    notebook.write(cell, "%%ranks\nkept = 40 + rank // 4\nmisspelled")
    assert "NameError" in notebook.run(cell)
    notebook.write(cell, "%%ranks\nkept + 2")
    assert notebook.run(cell) == "ranks 0–2: 42\n"


def opens_a_debugger_on_the_rank_that_failed(notebook, cell, output) -> None:
    """Check that its variables can be seen while the other ranks wait."""
    notebook.write(cell, FAILS)
    assert "ranks 0–1 wait in `dist.barrier()`" in notebook.run(cell)
    notebook.write(cell, "%debug_rank 2")
    notebook.start(cell)
    for line in "p loss", "q":
        box = output.locator(".jp-Stdin-input").last
        expect(box).to_have_value("")  # not the one that has just been answered
        box.fill(line)
        box.press("Enter")
        output.get_by_text(f"(Pdb)  {line}").wait_for()
    notebook.idle()
    assert re.search(r"p loss\s*102\s", output.text_content())
    notebook.write(cell, "%%ranks\nrank // 4")
    assert notebook.run(cell).startswith("(fresh ranks: ")
