"""Start a real JupyterLab as ``make lab`` does, and open notebooks in a browser.

The files that a worker runs share one server and one browser.
"""

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import psutil
import pytest
from playwright.sync_api import Error as Refused
from playwright.sync_api import TimeoutError as NotYet
from playwright.sync_api import expect

from allranks.base.paths import ROOT
from allranks.launch.torchrun import end_with_parent
from book._tools.lab import write
from book._tools.notebooks import METADATA
from tests.book.conftest import chromium

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/\S*token=\w+")
START_S = 60
EXECUTED = re.compile(r"^\[\d+\]:$")  # the prompt of a cell that has run
LIGHT = "css:light="  # look for no shadow DOM, behind each of 30,000 elements
browser = pytest.fixture(scope="package")(chromium)


@pytest.fixture(scope="package")
def lab(tmp_path_factory):
    """Yield JupyterLab on copies of the notebooks: its process and its address."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    listed = subprocess.run(
        ["make", "-n", "lab"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    command = next(
        line
        for line in listed.stdout.replace("\\\n", " ").splitlines()
        if "jupyter lab" in line
    )
    names = "CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR"
    own = {f"JUPYTER_{name}": str(folder / name) for name in names}
    own |= {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings")}
    own |= {"JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces")}
    assert command.rstrip().endswith("lab/ch1_environment.ipynb")
    write(folder / "lab")  # as the line before it does
    log = folder / "log"
    with open(log, "wb") as output:
        process = psutil.Popen(
            [*shlex.split(command), "--no-browser", "--ServerApp.port=0"],
            cwd=folder,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=end_with_parent if sys.platform == "linux" else None,
        )
    try:
        yield process, wait_for_address(process, log)
    finally:
        family = [*process.children(recursive=True), process]
        process.terminate()
        _, left = psutil.wait_procs(family, timeout=10)
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()


def wait_for_address(process, log: Path) -> str:
    """Return the address that the server prints, with its token."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        found = ADDRESS.findall(log.read_text("utf8"))
        if found:
            return found[0]
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text('utf8')}")


class Notebook:
    """An open notebook, used as a reader would: click a cell, press Shift+Enter."""

    def __init__(self, page, path: Path, num_cells: int, clear: bool, fresh: bool):
        self.page = page
        self.path = path
        self.panel = page.locator(f"{LIGHT}.jp-NotebookPanel:not(.lm-mod-hidden)")
        expect(self.cells).to_have_count(num_cells, timeout=180_000)  # slow to load
        self.idle()
        if fresh:  # JupyterLab asks about news only once
            with contextlib.suppress(Exception):
                page.get_by_role("button", name="No", exact=True).click(timeout=2000)
        if clear:
            self.clear()

    def idle(self, timeout: float = 150) -> None:
        """Wait until the kernel has nothing to do."""
        idle = f'{LIGHT}.jp-Notebook-ExecutionIndicator[data-status="idle"]'
        self.panel.locator(idle).wait_for(timeout=timeout * 1000)

    def clear(self) -> None:
        """Clear all outputs and numbers, so that whatever appears next is new."""
        self.command("Edit", "Clear Outputs of All Cells")
        expect(self.panel.get_by_text(EXECUTED)).to_have_count(0)

    @property
    def cells(self):
        """Return all code cells."""
        return self.panel.locator(f"{LIGHT}.jp-CodeCell")

    def start(self, cell) -> None:
        """Press Shift+Enter in a cell."""
        cell.locator(f"{LIGHT}.cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def run(self, cell, timeout: float = 150) -> str:
        """Run a cell, wait until it ends, and return the text that it shows."""
        prompt = cell.locator(f"{LIGHT}.jp-InputPrompt")
        before = prompt.inner_text()
        self.start(cell)
        deadline = time.monotonic() + timeout
        again = time.monotonic() + 10
        while (now := prompt.inner_text()) in (before, "[*]:"):
            assert time.monotonic() < deadline, f"still running: {cell.inner_text()}"
            self.page.wait_for_timeout(100)
            if now == before and time.monotonic() > again:
                # A notebook that was just opened is drawn anew, and the key was lost.
                self.start(cell)
                again = time.monotonic() + 10
        self.idle(timeout)
        # Not inner_text, because JupyterLab doesn't draw what is out of view.
        return cell.locator(f"{LIGHT}.jp-Cell-outputArea").text_content()

    def show(self, cell, within: str) -> None:
        """Bring a cell into view, and wait for what JupyterLab draws only there.

        A notebook that was just opened may replace its cells at any moment, so what was
        brought into view may be gone: therefore again each second.
        """
        for _ in range(120):  # the machine may be busy
            cell.evaluate("cell => cell.scrollIntoView({ block: 'center' })")
            with contextlib.suppress(NotYet):
                return cell.locator(within).last.wait_for(timeout=1000)
        raise AssertionError(f"no {within} in: {cell.inner_text()}")

    def figure(self, cell):
        """Return a cell's explorable, with its question answered."""
        self.show(cell, ".x-stage")
        asked = cell.get_by_role("button", name="Just show me")
        if asked.count():  # it is answered once, and remembered
            asked.click()
        return cell.locator(".x")

    def write(self, cell, source: str) -> None:
        """Replace a cell's source, pasting it as one text."""
        cell.locator(".cm-content").click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(source)

    def save(self) -> dict:
        """Save; return what is in the file as soon as all of it is there."""
        before = self.path.stat().st_mtime_ns
        self.command("File", re.compile("^Save Notebook"))
        while True:
            self.page.wait_for_timeout(50)
            if self.path.stat().st_mtime_ns != before:
                with contextlib.suppress(ValueError):  # only a part is written yet
                    return json.loads(self.path.read_text("utf8"))

    def command(self, menu: str, entry: str) -> None:
        """Choose an entry of a menu."""
        self.page.get_by_role("menuitem", name=menu, exact=True).click()
        self.page.get_by_role("menuitem", name=entry).first.click()


def end_kernels(address: str) -> None:
    """Shut down every kernel of the server, as "Shut Down All Kernels" does."""
    base, _, token = address.partition("?")
    base = base.partition("/lab")[0]

    def ask(method: str, path: str = "") -> bytes:
        url = f"{base}/api/sessions{path}?{token}"
        with urllib.request.urlopen(urllib.request.Request(url, method=method)) as got:
            return got.read()

    for session in json.loads(ask("GET")):
        ask("DELETE", f"/{session['id']}")


@pytest.fixture(scope="package")
def window(browser):
    """Yield one browser profile for all tests, which caches JupyterLab's 20 MB.

    No result waits for a guess there: the reader has pressed "Show all from now on".
    Nothing moves either: to draw figures that nobody looks at would keep a core busy.
    """
    context = browser.new_context(
        viewport={"width": 1280, "height": 1000}, reduced_motion="reduce"
    )
    context.add_init_script("window.allRanksShowAll = true")
    yield context
    context.close()


@pytest.fixture
def errors(window):
    """Yield the list of the errors in the browser's console, which grows."""
    found = []

    def note(message) -> None:
        if message.type == "error":
            found.append(message.text)

    window.on("console", note)
    window.on("weberror", lambda error: found.append(str(error.error)))
    yield found
    window.remove_listener("console", note)


def open_from_path(page, copy: str) -> None:
    """Open one more notebook, as the menu does."""
    page.get_by_role("menuitem", name="File", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("^Open from Path")).first.click()
    page.locator(".jp-Dialog input").fill(copy)
    page.locator(".jp-Dialog button.jp-mod-accept").click()


def close_notebooks(page) -> None:
    """Close all notebooks of a tab and forget their changes."""
    page.get_by_role("menuitem", name="File", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("^Close All Tabs")).first.click()
    dialog, panels = page.locator(".jp-Dialog"), page.locator(".jp-NotebookPanel")
    discard = dialog.get_by_role("button", name="Discard")
    while panels.count():
        discard.or_(page.locator(".jp-Launcher:visible")).first.wait_for()
        if discard.count():
            discard.click()
            dialog.wait_for(state="detached")


def save_notebook(path: Path, cells: list) -> Path:
    """Write a new notebook of cells, or of the code in them, and return its path."""
    code = nbformat.v4.new_code_cell
    cells = [code(cell) if isinstance(cell, str) else cell for cell in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=METADATA), path)
    return path


@pytest.fixture
def opened(lab, window):
    """Yield a function that opens a copy of a notebook; end its kernel afterwards.

    It has to be a copy, because JupyterLab saves by itself every two minutes, and
    Shift+Enter in the last cell adds a cell, which the next test must not find.
    """
    server, address = lab
    folder = Path(server.cwd()) / "lab"

    def open_notebook(source: str | Path, clear: bool = True) -> Notebook:
        if isinstance(source, str):
            source = ROOT / "notebooks" / f"{source}.ipynb"
        copies = (f"{source.stem}-{number}.ipynb" for number in itertools.count(1))
        copy = next(copy for copy in copies if not (folder / copy).exists())
        shutil.copy(source, folder / copy)
        if fresh := not window.pages:
            page = window.new_page()
            base, _, token = address.partition("?")
            page.goto(f"{base}/tree/{copy}?{token}")
        else:  # to load JupyterLab again would cost as much as many a test
            (page,) = window.pages
            open_from_path(page, copy)
        cells = nbformat.read(source, 4).cells
        num_cells = sum(cell.cell_type == "code" for cell in cells)
        return Notebook(page, folder / copy, num_cells, clear, fresh)

    yield open_notebook
    for page in window.pages:
        try:
            close_notebooks(page)
        except Refused:  # the test failed where no menu can be reached
            page.close()
    end_kernels(address)
