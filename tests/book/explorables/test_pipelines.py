"""Pipeline schedules work by keyboard, in a 390 px wide window."""

from allranks.topics import Pipeline

PAGE = "book/ch6_model_parallel"
STATE = {"num_ranks": 4, "num_microbatches": 8, "step": 7}


def test_schedule_and_moment_are_chosen_by_keyboard(explore):
    """The summary is Python's at each step, and each piece of work has a box."""
    x = explore(PAGE, "pipelines")
    python = Pipeline(**STATE)
    assert x.summary == python.facts["summary"]
    x.press("Next", " ")
    python.step += 1
    assert x.summary == python.facts["summary"]
    framed = x.box.locator("svg .x-chosen")
    at_work = [words for words in python.facts["now"] if "micro-batch" in words]
    idle = [words for words in at_work if words.startswith("idle")]
    assert framed.count() == len(at_work) - len(idle)
    x.field("Schedule").focus()
    x.page.keyboard.press("End")
    python.schedule = "ZBVZeroBubble"
    assert x.summary == python.facts["summary"]
    assert x.box.locator('svg .x-work [data-id^="a "]').count() == 4 * 8 * 2 * 3
    assert not x.field("Stages per rank").is_visible()  # ZBV has two, always
    assert "undefined" not in x.box.inner_text()


def test_torchs_refusal_is_shown_and_nothing_lost(explore):
    """A state that torch refuses shows torch's message, and nothing else changes."""
    x = explore(PAGE, "pipelines")
    before = x.summary
    x.fill("Micro-batches", 2)
    assert "(2) must be greater than or equal to the number of stages (4)." in x.error
    assert x.summary == before
    x.field("Schedule").focus()
    x.page.keyboard.press("Home")  # GPipe accepts the number that 1F1B refused
    assert not x.error and x.summary.startswith("GPipe on 4 ranks")
    row = x.box.get_by_role("row", name="1F1B refused")
    assert row.first.is_visible()
    x.press("Reset")
    assert x.summary == before


def test_the_largest_grid_fits_and_each_box_says_what_it_is(explore):
    """Nothing scrolls on a phone; where words have no room, there is a title."""
    x = explore(PAGE, "pipelines")
    for label, value in (("Micro-batches", 16), ("Ranks", 8)):
        x.fill(label, value)
    x.field("Schedule").select_option("ZBVZeroBubble")
    works = x.box.locator("svg .x-work:has([data-id^='a '])")
    assert works.count() == 8 * 16 * 2 * 3
    titled = "gs => gs.filter(g => g.querySelector(':scope > title')).length"
    assert works.evaluate_all(titled) == works.count()  # a locator takes half a minute
    assert x.box.evaluate("box => box.scrollWidth <= box.clientWidth")
    inside = """gs => gs.every(g => {
        const [text, box] = ["text", "rect"].map((one) => g.querySelector(one));
        return !text || text.getBBox().width < box.getBBox().width; })"""
    assert works.evaluate_all(inside)
    assert "F, pale: forward. I, filled: input gradient." in x.box.inner_text()


def test_the_red_part_is_the_idle_share(explore):
    """What is drawn of each rank's ground and not covered by work is its idle time."""
    x = explore(PAGE, "pipelines")
    width = """(box, id) => [...box.querySelectorAll(`svg [data-id^="${id}"]`)].reduce(
        (sum, one) => sum + Number(one.getAttribute("width")), 0)"""
    for which, facts in (
        ("a", Pipeline(**STATE).facts),
        ("b", Pipeline(**{**STATE, "schedule": "GPipe"}).facts),
    ):
        ground = x.box.evaluate(width, f"{which} idle")
        kinds = [x.box.evaluate(width, f"{which} {rank} ") for rank in range(4)]
        assert abs(1 - sum(kinds) / ground - facts["idle"]) < 1e-6
    x.field("Compare with").select_option("")
    assert x.box.locator('svg [data-id^="b "]').count() == 0
    x.field("Schedule").select_option("GPipe")
    x.field("Compare with").select_option("1F1B")
    x.fill("Micro-batches", 2)
    words = x.box.locator("svg").first.text_content()
    assert "1F1B: torch refuses these numbers" in words


def test_the_line_and_a_click_set_the_moment(explore):
    """A click chooses the moment, and the line can be moved by mouse and keys."""
    x = explore(PAGE, "pipelines")
    x.box.locator("svg .x-work").nth(3).click()
    assert x.field("Moment").input_value() == "3"
    line = x.box.get_by_role("slider", name="Moment, the line")
    line.focus()
    x.page.keyboard.press("ArrowRight")
    assert x.field("Moment").input_value() == "4"
    assert line.get_attribute("aria-valuetext") == "time 4"
    handle = line.locator("circle")
    x.drag(handle, 60)
    assert int(x.field("Moment").input_value()) > 8 and not x.error
    x.fill("Ranks", 8)
    assert x.box.evaluate("box => box.scrollWidth <= box.clientWidth")
