"""Explorables in a real JupyterLab answer each button, or say why none can come."""

import itertools
import json
import re

import nbformat
import psutil
import pytest
from playwright.sync_api import expect

from allranks import topics
from allranks.topics import CLASSES
from book._tools.notebooks import WIDGET
from tests.lab.conftest import ROOT, end_kernels, save_notebook

SHOW = "from allranks.topics import {0}\n\nx_{0} = {0}({1})\nx_{0}"
LOST = re.compile(
    "The kernel of this figure was restarted or shut down, so run the cell"
)
STATE = "application/vnd.jupyter.widget-state+json"
PRESS_THE_OTHERS = """async box => {
    const seen = (one) => one.checkVisibility({ visibilityProperty: true });
    const buttons = () => // pressing one may add or remove others
        [...box.querySelectorAll("button, [role=button]")].filter(seen);
    for (let i = 1; i < buttons().length; i++) {
        buttons()[i].dispatchEvent(new MouseEvent("click", { bubbles: true }));
        await new Promise(requestAnimationFrame);
    }
}"""
BUSY = "waiting for the kernel: it is busy, and runs this as soon as it can …"


@pytest.fixture
def shown(opened, tmp_path):
    """Yield a function that runs a new notebook with a cell for each explorable."""

    def show(*names: str, state: str = ""):
        cells = [SHOW.format(name, state) for name in names]
        cells.append("import os\nprint(os.getpid())")
        notebook = opened(save_notebook(tmp_path / "explorables.ipynb", cells))
        # First a cell without a figure: JupyterLab may call a kernel idle before it
        # listens for the models that the kernel opens.
        notebook.run(notebook.cells.nth(len(names)))
        for number in range(len(names)):
            notebook.run(notebook.cells.nth(number))
        return notebook

    return show


def figure(notebook, number: int = 0):
    """Return the explorable of a cell."""
    return notebook.figure(notebook.cells.nth(number))


def press(box):
    """Press the button that needs a kernel, and return what tells its answer."""
    box.locator(".x-tools .x-buttons button").click()
    answer = box.locator(".x-measured")
    assert answer.get_attribute("role") == "status"  # a screen reader reads it
    return answer


def kernel(notebook) -> psutil.Process:
    """Return the process of the kernel, which the cell below the figure names."""
    text = notebook.run(notebook.cells.nth(1))
    return psutil.Process(int(re.findall(r"\d+", text)[-1]))


def still_computes(box) -> bool:
    """Tell whether a control changes what the figure says, which takes the answer."""
    summary = box.locator(".x-summary")
    before = summary.inner_text()
    if box.locator("details.x-more").get_attribute("open") is None:
        box.get_by_text("More controls").click()
    field = box.get_by_label("samples in the data set", exact=True)
    field.fill(str(int(field.input_value()) + 2))
    return summary.inner_text() != before


@pytest.mark.timeout(600)  # much more than it takes, for busy machines
def test_each_button_answers(shown, errors):
    """In its default state an explorable can be run, and no button is an error."""
    notebook = shown(*CLASSES)
    runs = [hasattr(getattr(topics, name), "measure") for name in CLASSES]
    assert runs.count(False) == 2  # the memory of chapters 11 and 12 is only computed
    for number in itertools.compress(range(len(CLASSES)), runs):
        answer = press(figure(notebook, number))
        expect(answer).not_to_have_text(re.compile("^$|…$"), timeout=120_000)
    scratch = notebook.cells.nth(len(CLASSES))
    ran = itertools.compress(CLASSES, runs)
    measured = ", ".join(f"x_{name}.measured" for name in ran)
    notebook.write(scratch, f"[m['error'] for m in ({measured}) if 'error' in m]")
    assert notebook.run(scratch).endswith("[]")
    for number in range(len(CLASSES)):
        box = figure(notebook, number)
        box.evaluate(PRESS_THE_OTHERS)
        assert box.locator(".x-error").inner_text() == ""
    assert not errors


@pytest.mark.timeout(600)
def test_a_figure_outlives_its_kernel(shown, errors, lab):
    """Only its button needs one, and says what to do; the notebook keeps the rest."""
    notebook = shown("Sampler", state="world_size=2")
    restart(notebook)
    says_what_to_do(figure(notebook))
    is_there_when_the_notebook_is_opened_again(notebook, lab)
    notebook.clear()
    notebook.run(notebook.cells.nth(0))  # as the sentence says
    waits_for_a_slow_kernel_and_not_for_a_dead_one(notebook)
    notebook.run(notebook.cells.nth(0))
    notebook.command("Kernel", re.compile("^Shut Down Kernel"))
    notebook.panel.get_by_text("No Kernel").first.wait_for()
    says_what_to_do(figure(notebook))
    assert not errors


def restart(notebook) -> None:
    """Restart the kernel as the menu does."""
    notebook.command("Kernel", re.compile("Restart Kernel…"))
    notebook.page.locator(".jp-Dialog button.jp-mod-accept").click()
    notebook.idle()


def says_what_to_do(box) -> None:
    """Check that the button needs the cell to be run again, and the controls don't."""
    expect(press(box)).to_have_text(LOST)
    assert still_computes(box)


def is_there_when_the_notebook_is_opened_again(notebook, lab) -> None:
    """Check that its model is saved with it, although the kernel was restarted."""
    saved = notebook.save()
    (output,) = saved["cells"][0]["outputs"]
    view = output["data"][WIDGET]["model_id"]
    state = saved["metadata"]["widgets"][STATE]["state"]
    assert view in state and len(state) == 2  # and its layout
    notebook.page.goto("about:blank")
    end_kernels(lab[1])
    notebook.page.go_back()
    notebook.idle()
    says_what_to_do(figure(notebook))


def waits_for_a_slow_kernel_and_not_for_a_dead_one(notebook) -> None:
    """Check that it waits while the kernel is stopped, and says so if it has died."""
    process = kernel(notebook)
    box = figure(notebook)
    process.suspend()
    answer = press(box)
    expect(answer).to_have_text(BUSY)
    notebook.page.wait_for_timeout(2000)
    expect(answer).to_have_text(BUSY)  # however long it takes
    process.resume()
    expect(answer).to_contain_text("2 real ranks", timeout=120_000)
    process.suspend()
    expect(press(box)).to_have_text(BUSY)
    process.kill()
    has_died = notebook.page.get_by_role("button", name="Ok", exact=True)
    has_died.click(timeout=60_000)
    expect(answer).to_have_text(LOST, timeout=60_000)
    assert still_computes(box)
    expect(answer).to_be_empty()


@pytest.mark.timeout(600)
def test_the_chapters_figures_are_still_pictures_until_they_run(
    opened, errors, tmp_path
):
    """What the notebooks store needs no model: opened freshly, nothing is missing."""
    cells = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        assert WIDGET not in path.read_text("utf8"), path.name
        cells += [
            cell
            for cell in nbformat.read(path, 4).cells
            if 'class=\\"explorable' in json.dumps(cell.get("outputs"))
        ]
    assert len(cells) == len(CLASSES) - 1  # all but the intro's, which has no notebook
    path = save_notebook(tmp_path / "chapters.ipynb", cells)
    notebook = opened(path, clear=False)
    for number in range(len(cells)):
        notebook.show(notebook.cells.nth(number), "figure p")
    notebook.page.wait_for_timeout(2500)  # a missing model is awaited for 2 s
    assert not errors
