"""Notebooks work in a real JupyterLab: cells, widgets, and what ranks owe a reader."""

import re
import time

import nbformat
import psutil
import pytest
from playwright.sync_api import expect

from allranks.exercises.files import find
from tests.lab.conftest import ROOT, save_notebook

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
HANG = """%%ranks --timeout 300
open(f"here-{rank}", "w").close()
if rank != 1:
    dist.barrier()"""


def sources(name: str) -> list[tuple[str, bool]]:
    """Return the code cells of a notebook, and whether each is meant to fail."""
    nb = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    return [
        (cell.source, "raises-exception" in cell.metadata.get("tags", ()))
        for cell in nb.cells
        if cell.cell_type == "code"
    ]


def find_cell(notebook, text: str):
    """Return chapter 4's first code cell whose original source holds a text."""
    found = (n for n, (source, _) in enumerate(sources("ch4_ranks")) if text in source)
    return notebook.cells.nth(next(found))


def children(process) -> set[int]:
    """Return the ids of all processes below this one."""
    return {child.pid for child in process.children(recursive=True)}


def gone(pids: set[int], within_s: float = 10) -> bool:
    """Tell whether these processes end in time."""
    deadline = time.monotonic() + within_s
    while left := {pid for pid in pids if psutil.pid_exists(pid)}:
        if time.monotonic() > deadline:
            print("still there:", [psutil.Process(pid).cmdline() for pid in left])
            return False
        time.sleep(0.05)
    return True


def wait_until_all_sleep(pids: set[int], page) -> None:
    """Wait until all processes sleep, as ranks do in a barrier but not while they work.

    A process that waits for a core is runnable, so a busy machine isn't taken for it.
    """
    used = None
    while True:
        processes = [psutil.Process(pid) for pid in sorted(pids)]
        states = {process.status() for process in processes}
        last, used = used, [process.cpu_times()[:2] for process in processes]
        if used == last and states == {psutil.STATUS_SLEEPING}:
            return
        page.wait_for_timeout(250)


@pytest.mark.timeout(600)  # much more than it takes, for busy machines
def test_a_notebook_runs_cell_by_cell(opened):
    """Shift+Enter in each cell works, and what the cells show is live."""
    notebook = opened("ch4_ranks")
    cells = sources("ch4_ranks")
    for number in range(len(cells)):
        notebook.run(notebook.cells.nth(number))
    for number, (source, fails) in enumerate(cells):  # now all outputs have arrived
        cell = notebook.cells.nth(number)
        # JupyterLab shows an exception as it shows a warning.
        said = cell.locator('[data-mime-type="application/vnd.jupyter.stderr"]')
        assert bool(said.count()) == fails, f"{source}\n{said.all_inner_texts()}"
    explorable_is_live_both_ways(notebook)
    exercise_is_checked(notebook)
    notebook.save()  # as JupyterLab does by itself, every two minutes


def explorable_is_live_both_ways(notebook) -> None:
    """Check that Python sees a control's new value, and the control Python's."""
    box = notebook.figure(find_cell(notebook, "WhoIsWho(nodes="))
    box.locator(".x-summary", has_text="Rank 2 of 3").wait_for()  # who.change(...)
    box.get_by_text("More controls", exact=True).click()
    box.get_by_label("rank", exact=True).fill("1")
    scratch = find_cell(notebook, "who.change(")
    notebook.write(scratch, "who.rank, who.facts['local_rank']")
    assert "(1, 1)" in notebook.run(scratch)
    notebook.write(scratch, "who.rank = 0")
    notebook.run(scratch)
    box.locator(".x-summary", has_text="Rank 0 of 3").wait_for()
    assert box.get_by_role("button", name="Launch it with torchrun").count() == 1


def exercise_is_checked(notebook) -> None:
    """Check that a stub is called a stub, and the solution typed over it right."""
    name = "ex4_1"
    stub = find_cell(notebook, f"def {name}(")
    check = find_cell(notebook, f"check({name})")
    assert "stub" in check.locator(".jp-Cell-outputArea").text_content()
    notebook.write(stub, find(name).code("solution"))
    notebook.run(stub)
    assert f"{name}: right" in notebook.run(check)


@pytest.mark.timeout(600)  # much more than it takes, for busy machines
def test_what_a_notebook_user_expects(opened, lab, tmp_path):
    """One notebook, as a reader would use it."""
    server, _ = lab
    start = "%load_ext allranks\n%ranks 3"
    notebook = opened(save_notebook(tmp_path / "manners.ipynb", [start]))
    before = children(server)  # the kernel itself, and those of other notebooks
    cell = notebook.cells.nth(0)
    output = cell.locator(".jp-Cell-outputArea")
    assert "ranks 0–2 on cpu" in notebook.run(cell)
    speaks_while_it_runs(notebook, cell, output)
    redraws_a_bar_in_place(notebook, cell, output)
    shows_figures_beside_each_other(notebook, cell, output)
    keeps_variables_after_an_exception(notebook, cell)
    opens_a_debugger_on_the_rank_that_failed(notebook, cell, output)
    the_stop_button_reports_who_waits_where(notebook, cell, output, server, before)
    a_restart_leaves_no_rank(notebook, server, before)
    notebook.clear()
    notebook.write(cell, start)
    assert "ranks 0–2 on cpu" in notebook.run(cell)


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


def the_stop_button_reports_who_waits_where(
    notebook, cell, output, server, before: set[int]
) -> None:
    """Check that it ends a hang, and that the next cell has fresh ranks."""
    notebook.write(cell, HANG)
    notebook.start(cell)
    folder = notebook.path.parent
    while len(list(folder.glob("here-*"))) < 3:
        notebook.page.wait_for_timeout(50)
    wait_until_all_sleep(children(server) - before, notebook.page)
    assert cell.locator(".jp-InputPrompt").inner_text() == "[*]:"
    notebook.page.get_by_role("button", name=re.compile("Interrupt")).first.click()
    notebook.idle(timeout=10)
    report = output.text_content()
    assert "ranks 0 and 2 wait in `dist.barrier()` at cell line 4" in report
    notebook.write(cell, "%%ranks\nrank")
    assert "rank 1: 1" in notebook.run(cell)  # fresh ranks


def a_restart_leaves_no_rank(notebook, server, before: set[int]) -> None:
    """Check that all processes below the kernel end with it."""
    family = children(server) - before
    assert len(family) >= 3  # the ranks are alive
    notebook.command("Kernel", re.compile("Restart Kernel…"))
    notebook.page.locator(".jp-Dialog button.jp-mod-accept").click()
    assert gone(family)
    notebook.idle()
