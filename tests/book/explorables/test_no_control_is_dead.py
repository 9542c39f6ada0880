"""Every control of every explorable on every page does something by keyboard."""

import re

import pytest
import yaml
from playwright.sync_api import TimeoutError

from allranks.base.paths import ROOT
from tests.book.conftest import site, toc_pages  # noqa: F401
from tests.book.explorables.conftest import ANSWERED, OPEN

PAGES = [
    name
    for name in toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text("utf8")))
    for path in ROOT.glob(f"{name}.*")
    if re.search(r"`{explorable}|allranks.topics import", path.read_text("utf8"))
]
# What a reader sees of an explorable: text, pictures, the fields' values.
SEEN = """box => box.innerHTML + [...box.querySelectorAll("input, select")]
    .map(e => e.type === "checkbox" ? e.checked : e.value).join()"""
NOTE = f"box => {{ window.before = ({SEEN})(box); }}"
CHANGED = f"box => ({SEEN})(box) !== window.before"
# Skip controls that are marked as idle: at an end, or already chosen. A file field has
# a test of its own.
IDLE = """e => e.ariaDisabled === "true" || e.ariaPressed === "true"
    || e.type === "file" """
RESET = """box => [...box.querySelectorAll("button")].find(
    e => e.textContent === "Reset" && e.checkVisibility())?.click()"""
CONTROLS = "input:visible, select:visible, button:visible, .x-press:visible"


@pytest.fixture(scope="module")
def page(browser):
    """Yield one browser window for all pages."""
    size = {"width": 390, "height": 844}
    context = browser.new_context(viewport=size, reduced_motion="reduce")
    context.add_init_script(ANSWERED)
    yield context.new_page()
    context.close()


def use(page, control) -> None:
    """Change a control with the keys for its kind."""
    control.focus()
    kind = control.evaluate("e => e.type || e.getAttribute('role')")
    if kind in ("range", "number"):
        now = float(control.input_value() or 0)
        top = control.get_attribute("max")
        page.keyboard.press("ArrowDown" if top and now >= float(top) else "ArrowUp")
    elif kind == "select-one":
        last = control.evaluate("e => e.selectedIndex === e.length - 1")
        page.keyboard.press("ArrowUp" if last else "ArrowDown")
    elif kind == "text":
        page.keyboard.press("End")
        page.keyboard.type("?")  # at least an error must answer
    else:
        page.keyboard.press("Space" if kind == "checkbox" else "Enter")


@pytest.mark.replay("{name}.html")
@pytest.mark.parametrize("name", PAGES)
def test_no_control_is_dead(page, site, name):  # noqa: F811
    """Using any control in its explorable's first state makes a visible difference."""
    dead, used = [], 0
    page.goto((site / f"{name}.html").as_uri())
    for figure in page.locator("figure.explorable").all():
        box = figure.locator(".x")
        box.evaluate(OPEN)
        for number in range(box.locator(CONTROLS).count()):
            control = box.locator(CONTROLS).nth(number).element_handle()
            what = control.evaluate(
                "e => e.labels?.[0]?.textContent ?? e.ariaLabel ?? e.textContent"
            )
            if control.evaluate(IDLE):
                continue
            box.evaluate(NOTE)
            use(page, control)
            try:  # Play takes a moment for its first step
                shown = box.element_handle()
                page.wait_for_function(CHANGED, arg=shown, timeout=3000)
            except TimeoutError:
                dead.append(f"{figure.get_attribute('data-explorable')}: {what}")
            used += 1
            box.evaluate(RESET)  # it is hidden where nothing has changed
    assert not dead
    assert used > 1 or name.startswith("notebooks/")
