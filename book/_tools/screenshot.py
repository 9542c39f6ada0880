"""Take the README's pictures in a real browser: live ranks, an explorable, a diagnosis.

    python book/_tools/screenshot.py        # writes three files in book/_readme

It needs Chromium (make browser) and the built book (make book). Nothing is staged: the
cells run in a real JupyterLab, and the two pages really answer.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Locator, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # for book._tools

from book._tools.browser import find  # noqa: E402
from book._tools.notebooks import METADATA  # noqa: E402

PICTURES = ROOT / "book" / "_readme"
SITE = ROOT / "_build" / "html" / "book"
LOG = ROOT / "book" / "_examples" / "train.log"
CELLS = [
    "%load_ext allranks\n%ranks 4",
    "%%ranks\nx = torch.full((2,), float(rank))\ndist.all_reduce(x)\nx",
    "%%ranks --timeout 3\nif rank != 1:\n    dist.barrier()",
]
PLAIN = """
.jp-InputPrompt, .jp-OutputPrompt, .jp-Toolbar, .jp-NotebookPanel-footer,
.jp-Notebook-footer, .jp-cell-toolbar, .jp-Collapser, .jp-Cell:last-child,
.Toastify { display: none !important; }
"""


def serve(folder: Path) -> tuple[subprocess.Popen, str]:
    """Start JupyterLab on a free port of this machine; return (process, address)."""
    settings = ["--ServerApp.ip=127.0.0.1", "--port=0", "--no-browser", "--allow-root"]
    settings += ["--LabApp.news_url=None", "--LabApp.check_for_updates_class="]
    settings[-1] += "jupyterlab.NeverCheckForUpdate"
    settings += ["--IdentityProvider.token=", f"--ServerApp.root_dir={folder}"]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *settings],
        env={**os.environ, "JUPYTER_RUNTIME_DIR": str(folder / "runtime")},
        stderr=subprocess.DEVNULL,
    )
    for _ in range(300):
        for info in (folder / "runtime").glob("jpserver-*.json"):
            return server, json.loads(info.read_text("utf8"))["url"]
        time.sleep(0.1)
    server.terminate()
    raise SystemExit("JupyterLab did not start within 30 s")


def picture(page: Page, address: str) -> None:
    """Run every cell, hide everything but the notebook, and save the picture."""
    page.goto(f"{address}doc/tree/demo.ipynb")
    page.wait_for_selector("text=/ipykernel. . Idle/", timeout=60_000)
    page.locator(".jp-InputArea-editor").first.click()
    for number in range(1, len(CELLS) + 1):
        page.keyboard.press("Shift+Enter")
        prompt = f".jp-InputPrompt:text-is('[{number}]:')"
        page.wait_for_selector(prompt, timeout=60_000)
    page.add_style_tag(content=PLAIN)
    page.wait_for_timeout(500)
    first = page.locator(".jp-CodeCell").first.bounding_box()
    last = page.locator(".jp-OutputArea-output").last.bounding_box()
    height = last["y"] + last["height"] - first["y"] + 18
    clip = {"x": first["x"], "y": first["y"] - 12, "width": first["width"]}
    page.screenshot(path=PICTURES / "live_ranks.png", clip={**clip, "height": height})


def explorable(page: Page) -> None:
    """Answer the question of the intro's figure, and take a picture of who waits."""
    page.goto((SITE / "intro.html").as_uri())
    figure = page.locator("figure[data-explorable=arrivals]")
    figure.get_by_role("button", name="Just show me").click()
    figure.get_by_role("button", name="Bring rank 1 back").wait_for()
    save(page, "explorable.png", figure, figure.locator(".x-tools"))


def diagnosis(page: Page) -> None:
    """Paste a log into the clinic's box, and take a picture of the answer."""
    page.goto((SITE / "app_clinic.html").as_uri())
    box = page.locator(".diagnose")
    box.locator("textarea").fill(LOG.read_text("utf8"))
    box.get_by_role("button", name="Find it").click()
    box.locator("summary").first.wait_for()
    page.set_viewport_size({"width": 1000, "height": 3000})  # with the whole answer
    save(page, "diagnosis.png", box, box.locator("summary").first)


def save(page: Page, name: str, whole: Locator, rest: Locator) -> None:
    """Save ``whole`` as a picture, from its top to where ``rest`` begins."""
    whole.scroll_into_view_if_needed()
    page.wait_for_timeout(500)  # until scrolling and animations have ended
    clip, end = whole.bounding_box(), rest.bounding_box()
    clip["height"] = end["y"] - clip["y"] - 2
    page.screenshot(path=PICTURES / name, clip=clip)


def main() -> None:
    """Serve a notebook, open it, run it, take the pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        cells = [new_code_cell(source) for source in CELLS]
        demo = new_notebook(cells=cells, metadata=METADATA)
        nbformat.write(demo, Path(folder, "demo.ipynb"))
        server, address = serve(Path(folder))
        try:
            browser = playwright.chromium.launch(
                executable_path=find(), args=["--headless", "--no-sandbox"]
            )
            size = {"width": 720, "height": 620}
            picture(browser.new_page(viewport=size, device_scale_factor=1.5), address)
            size = {"width": 1000, "height": 1500}
            for take in explorable, diagnosis:
                take(
                    browser.new_page(
                        viewport=size, device_scale_factor=1.5, reduced_motion="reduce"
                    )
                )
            browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
