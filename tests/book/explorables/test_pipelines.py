"""Pipeline schedules work by keyboard, in a 390 px wide window."""

from allranks.explorables import Pipeline

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
    framed = x.box.locator(".x-chosen")
    at_work = [words for words in python.facts["now"] if "micro-batch" in words]
    idle = [words for words in at_work if words.startswith("idle")]
    assert framed.count() == len(at_work) - len(idle)
    x.field("Schedule").focus()
    x.page.keyboard.press("End")
    python.schedule = "ZBVZeroBubble"
    assert x.summary == python.facts["summary"]
    assert x.box.locator("svg rect.x-box").count() == 4 * 8 * 2 * 3
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


def test_the_largest_grid_has_a_number_in_every_box(explore):
    """Even two digits fit, and the legend says how the kinds of work differ."""
    x = explore(PAGE, "pipelines")
    for label, value in (("Micro-batches", 16), ("Ranks", 8)):
        x.fill(label, value)
    x.field("Schedule").select_option("ZBVZeroBubble")
    works = x.box.locator("svg g")
    assert works.count() == 8 * 16 * 2 * 3
    assert x.box.locator("svg g:not(:has(text))").count() == 0
    inside = """gs => gs.every(g => g.querySelector("text").getBBox().width
        < g.querySelector("rect.x-box").getBBox().width)"""
    assert works.evaluate_all(inside)
    assert "F, pale: forward. I, filled: input gradient." in x.box.inner_text()


def test_a_click_into_the_grid_sets_the_moment(explore):
    """A click chooses the moment, as the slider does by keyboard."""
    x = explore(PAGE, "pipelines")
    x.box.locator("svg g").nth(3).click()
    assert x.field("Moment").input_value() == "3"
    x.fill("Ranks", 8)
    wide = x.box.locator(".x-scroll").first
    assert wide.evaluate(
        "box => box.scrollWidth > box.clientWidth && box.tabIndex === 0"
    )
    assert x.box.evaluate("box => box.scrollWidth <= box.clientWidth")
