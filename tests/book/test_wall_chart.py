"""The wall chart's script shows the step's own numbers, by mouse and by keyboard."""

import pytest

from allranks.topics.step import picture, sums

SEEN = """svg => {
    const box = (those) => [...svg.querySelectorAll(those)].map(
        one => Number(one.getAttribute("height")) / one.dataset[those.includes("cell")
            ? "size" : "high"]);
    return { tank: box("[data-kind]"), sent: box("[data-cell]"),
        line: svg.querySelector("[data-line]").transform.baseVal[0].matrix.e };
}"""


@pytest.fixture
def chart(empty_tab, site):
    """Return the page's chart."""
    tab = empty_tab(1280, 800)
    tab.goto((site / "book/app_step.html").as_uri())
    return tab.locator("figure.wall-chart")


def shown(chart) -> dict:
    """Return what the drawing in sight shows, as shares of full."""
    return chart.locator(".wall-panel:visible svg:visible").evaluate(SEEN)


def test_the_playhead_fills_tanks_and_squares(chart):
    """At the end of a step the activations are gone and all gradients have arrived."""
    found = sums.step("ddp", picture.WORLD_SIZE, picture.BATCH_SIZE)
    slider = chart.get_by_role("slider", name="Moment of the step")
    slider.focus()
    for key, (time, held), sent in (
        ("Home", found.moments[0], 0),
        ("End", found.moments[-1], 1),
    ):
        chart.page.keyboard.press(key)
        seen = shown(chart)
        assert seen["tank"] == pytest.approx([n / picture.FULL for n in held] * 4)
        assert seen["sent"] == pytest.approx([sent] * 4)
        line = time / picture.longest() * picture.WIDE.lane_width
        assert seen["line"] == pytest.approx(line, abs=0.1)
        assert int(slider.input_value()) == round(1000 * time / picture.longest())
    said = chart.locator(".wall-now").inner_text()
    assert "After 64.9 ms (step: Adam), a rank holds 2.49 GB" in said
    assert "activations" not in said


def test_it_begins_in_the_middle_of_what_is_sent(chart):
    """Tanks, lanes and sends all say something; Next and Back go from there."""
    assert shown(chart)["sent"] == pytest.approx([0.5] * 4, abs=0.1)
    said = chart.locator(".wall-now").inner_text
    first = said()
    chart.get_by_role("button", name="Next").click()
    assert said() != first and min(shown(chart)["sent"]) > 0.4
    chart.get_by_role("button", name="Back").click()
    assert said() == first


def test_a_tab_shows_another_layout(chart):
    """By an arrow key too; a GPU alone sends nothing, and is seen at its fullest."""
    assert chart.get_by_role("tab", name="DDP").get_attribute("aria-selected") == "true"
    assert len(shown(chart)["sent"]) == 4
    chart.get_by_role("tab", name="DDP").focus()
    chart.page.keyboard.press("ArrowLeft")
    one = sums.step("single", 1, picture.BATCH_SIZE)
    seen = shown(chart)
    assert not seen["sent"]
    assert seen["tank"] == pytest.approx([n / picture.FULL for n in one.peak[1]])
    assert "the most of the step" in chart.locator(".wall-now").inner_text()


@pytest.mark.parametrize("width", [390, 1280, 1500])
def test_the_playhead_is_dragged(empty_tab, site, width):
    """What one takes hold of is the playhead's own knob, and it follows the mouse."""
    tab = empty_tab(width, 800)
    tab.goto((site / "book/app_step.html").as_uri())
    knob = tab.locator(".wall-knob:visible").first
    knob.scroll_into_view_if_needed()

    def middle() -> tuple[float, float]:
        box = knob.bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    x, y = middle()
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x + 60, y, steps=4)
    tab.mouse.up()
    assert middle()[0] - x == pytest.approx(60, abs=2)


def test_play_ends_at_the_end(chart):
    """It begins anew after the end, and stops there by itself."""
    slider = chart.get_by_role("slider", name="Moment of the step")
    slider.focus()
    chart.page.keyboard.press("End")
    chart.page.keyboard.press("ArrowLeft")
    chart.get_by_role("button", name="Play").click()
    chart.get_by_role("button", name="Play").wait_for()
    assert "64.9 ms, step: Adam" in slider.get_attribute("aria-valuetext")
    chart.get_by_role("button", name="Play").click()
    assert int(slider.input_value()) < 100
    chart.get_by_role("button", name="Pause").click()


def test_the_sheet_can_be_taken(chart, site):
    """The page's link leads to the file that the build has written."""
    link = chart.page.get_by_role("link", name="sheet for A2")
    assert link.get_attribute("href") == "../_static/wall-chart-a2.svg"
    sheet = (site / "_static/wall-chart-a2.svg").read_text("utf8")
    assert sheet == picture.sheet()
