"""Open a page of the built site and use its explorables by keyboard.

The files that a worker runs share one browser.
"""

import pytest

from allranks.topics import CLASSES
from tests.book.conftest import chromium, empty_tab, http, site  # noqa: F401

browser = pytest.fixture(scope="package")(chromium)

QUIET = ("error", "warning")


# Draw a figure again as in a live notebook, with a measurement.
ALIVE = """([figure, name, measured]) => {
    const state = JSON.parse(figure.dataset.state), el = document.createElement("div");
    const values = { ...state, initial: state, live: true, measured };
    figure.replaceChildren(el);
    allRanks[name].render({ el, model: {
        get: (name) => values[name], set: (name, value) => { values[name] = value; },
        on() {}, off() {}, save_changes() {},
    } });
}"""


OPEN = """box => box.querySelectorAll("details:not(.x-share)").forEach(
    one => { one.open = true; })"""

# The question that comes before the answer is done with, unless a test is about it.
ANSWERED = f"""for (const name of {list(CLASSES.values())})
    localStorage.setItem(`allranks.guess.${{name}}`, "-1");"""


class Driver:
    """An explorable on a page, whose parts are found by their accessible names."""

    def __init__(self, page, name: str, nth: int = 0, unfold: bool = True):
        self.page, self.name = page, name
        figure = f'figure.explorable[data-explorable="{name}"]'
        self.box = page.locator(figure).nth(nth)
        self.box.scroll_into_view_if_needed()
        if unfold:
            self.unfold()

    def unfold(self) -> None:
        """Open what is folded: further controls, tables."""
        self.box.evaluate(OPEN)

    def measure(self, measured: dict) -> None:
        """Show a measurement, as a kernel would send it."""
        self.page.evaluate(ALIVE, [self.box.element_handle(), self.name, measured])
        self.unfold()

    def field(self, label: str):
        """Return the control with this label."""
        return self.box.get_by_label(label, exact=True)

    def button(self, name: str):
        """Return the button (or the part of a picture) with this name."""
        return self.box.get_by_role("button", name=name, exact=True)

    def fill(self, label: str, value) -> None:
        """Replace a field's content as a reader does: select all, then type."""
        field = self.field(label)
        field.focus()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.type(str(value))

    def press(self, name: str, key: str = "Enter") -> None:
        """Focus a button and press a key."""
        self.button(name).focus()
        self.page.keyboard.press(key)

    def drag(self, part, by: float) -> None:
        """Drag a part of the figure ``by`` px to the right, from its middle."""
        part.scroll_into_view_if_needed()
        box = part.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(x + by, y, steps=5)
        self.page.mouse.up()

    @property
    def summary(self) -> str:
        """Return what a screen reader is told."""
        return self.box.locator(".x-summary").inner_text()

    @property
    def error(self) -> str:
        """Return why a state is not possible."""
        return self.box.locator(".x-error").inner_text()


@pytest.fixture
def explore(empty_tab, site):  # noqa: F811
    """Yield a function that opens an explorable; fail on console errors or warnings."""
    complaints = []

    def note(message) -> None:
        if message.type in QUIET:
            complaints.append(message.text)

    def note_error(error) -> None:
        complaints.append(str(error))

    def open_page(
        page_name: str,
        name: str,
        nth: int = 0,
        asked: bool = False,
        reduced_motion: str = "reduce",  # then the page does not scroll smoothly either
        unfold: bool = True,
    ) -> Driver:
        tab.emulate_media(reduced_motion=reduced_motion)
        tab.evaluate(f"localStorage.clear(); {'' if asked else ANSWERED}")
        tab.goto((site / f"{page_name}.html").as_uri())
        return Driver(tab, name, nth, unfold)

    tab = empty_tab(390, 844)
    tab.on("console", note)
    tab.on("pageerror", note_error)
    yield open_page
    tab.remove_listener("console", note)
    tab.remove_listener("pageerror", note_error)
    assert not complaints
