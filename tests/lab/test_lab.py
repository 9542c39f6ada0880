"""Notebooks work in a real JupyterLab: cells, live ranks, widgets, stop, restart."""

import re
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from allranks.exercises.files import find
from tests.lab.conftest import ROOT, save_notebook

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
def test_stop_ends_a_hang_and_a_restart_leaves_no_rank(opened, lab, tmp_path):
    """The stop button reports which rank waits where; a restart ends all ranks."""
    server, _ = lab
    cells = ["%load_ext allranks\n%ranks 2", HANG]
    notebook = opened(save_notebook(tmp_path / "hangs.ipynb", cells))
    before = children(server)  # the kernel itself, and those of other notebooks
    notebook.run(notebook.cells.nth(0))
    hang = notebook.cells.nth(1)
    notebook.start(hang)
    folder = Path(server.cwd()) / "lab"
    while len(list(folder.glob("here-*"))) < 2:
        notebook.page.wait_for_timeout(50)
    wait_until_all_sleep(children(server) - before, notebook.page)
    assert hang.locator(".jp-InputPrompt").inner_text() == "[*]:"
    notebook.page.get_by_role("button", name=re.compile("Interrupt")).first.click()
    notebook.idle(timeout=10)
    report = hang.locator(".jp-Cell-outputArea").text_content()
    assert "rank 0 waits in `dist.barrier()` at cell line 4" in report
    notebook.write(hang, "%%ranks\nrank")
    assert "rank 1: 1" in notebook.run(hang)  # fresh ranks

    family = children(server) - before
    assert len(family) >= 2  # the ranks are alive
    notebook.command("Kernel", re.compile("Restart Kernel…"))
    notebook.page.locator(".jp-Dialog button.jp-mod-accept").click()
    assert gone(family)
    notebook.idle()
    notebook.clear()
    assert "ranks 0–1 on cpu" in notebook.run(notebook.cells.nth(0))
