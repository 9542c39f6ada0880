"""Pipeline schedules work by keyboard, in a 390 px wide window."""

from itertools import pairwise

import pytest

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
    framed = x.box.locator('svg .x-chosen[data-id^="a "]')
    at_work = [words for words in python.facts["now"] if "micro-batch" in words]
    idle = [words for words in at_work if words.startswith("idle")]
    assert framed.count() == len(at_work) - len(idle)
    x.field("Schedule").focus()
    x.page.keyboard.press("End")
    python.schedule = "ZBVZeroBubble"
    assert x.summary == python.facts["summary"]
    name = x.field("Schedule").locator("option:checked").inner_text()
    assert x.summary.startswith(f"{name} on 4 ranks: a step takes 25.5 units")
    drawn = x.box.locator("svg").first.text_content()
    assert f"{name}: 25.5 units" in drawn and "33 units" in drawn
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
    words = x.box.locator("svg text").all_text_contents()
    for kind in ("forward", "input gradient", "weight gradients", "later stage"):
        assert kind in words


def test_the_red_part_is_the_idle_share(explore):
    """Red fills what work leaves of each lane, to the end of the schedule."""
    x = explore(PAGE, "pipelines")
    width = """(box, id) => [...box.querySelectorAll(`svg [data-id^="${id}"]`)].reduce(
        (sum, one) => sum + Number(one.getAttribute("width")), 0)"""
    for which, facts in (
        ("a", Pipeline(**STATE).facts),
        ("b", Pipeline(**{**STATE, "schedule": "GPipe"}).facts),
    ):
        red = x.box.evaluate(width, f"{which} idle")
        work = sum(x.box.evaluate(width, f"{which} {rank} ") for rank in range(4))
        assert abs(red / (red + work) - facts["idle"]) < 1e-6
    words = x.box.locator("svg").first.text_content()
    assert "1F1B: 33 units, idle 27\xa0%" in words and "GPipe: 33 units" in words
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


def test_threads_lead_from_what_a_rank_waited_for(explore):
    """What has arrived is hatched; a rank that still waits has a dashed thread."""
    x = explore(PAGE, "pipelines")
    python = Pipeline(**STATE)
    x.field("Compare with").select_option("")
    for _ in range(4):
        facts = python.facts
        running = [
            (rank, *work[:3], rank - 1 if work[0] == "F" else rank + 1)
            for rank, row in enumerate(facts["rows"])
            for work in row
            if work[3] <= facts["time"] < work[4]
        ]
        # It flies from the rank that has the stage before, or after for a gradient.
        sent = [
            (f"sent a {rank} {kind} {i} {stage}", f"a {peer} {kind} {i} {peer}")
            for rank, kind, i, stage, peer in running
            if peer in range(4)
        ]
        found = x.box.locator('svg [data-id^="sent "]').all()
        names = "data-id", "data-from"
        assert [tuple(map(one.get_attribute, names)) for one in found] == sent
        idle = [words for words in facts["now"] if words.startswith("idle")]
        waited = x.box.locator("svg .x-arrow[style*='dasharray']")
        assert waited.count() == len(idle)
        x.press("Next", " ")
        python.step += 1
    x.box.locator("svg .x-work").first.hover()  # its whole way, there and back
    assert x.box.locator("svg .x-arrow").count() >= 2 * 3


def test_what_a_rank_holds_is_a_staircase(explore):
    """It rises to the number at its right, on the same scale in both schedules."""
    x = explore(PAGE, "pipelines")
    stairs = x.box.locator("svg path[d*='H'][d*='V'][style*='opacity: 0.55']")
    rises = stairs.evaluate_all("""all => all.map(one => one.getBBox().height)""")
    unit = rises[4] / 8
    assert [round(rise / unit) for rise in rises] == [4, 3, 2, 1, 8, 8, 8, 8]


def test_the_right_edge_is_pulled_for_more_micro_batches(explore):
    x = explore(PAGE, "pipelines")
    edge = x.box.get_by_role("slider", name="Micro-batches, the right edge")
    edge.focus()
    x.page.keyboard.press("ArrowRight")
    assert x.field("Micro-batches").input_value() == "9"
    assert x.summary == Pipeline(**STATE | {"num_microbatches": 9}).facts["summary"]
    x.drag(edge, 72)
    assert x.field("Micro-batches").input_value() == "12"


def test_the_question_is_what_more_micro_batches_do(explore):
    """The answer is what the figure says of the state that the question names."""
    x = explore(PAGE, "pipelines", asked=True)
    assert "27 % of this step, red. How much is it with 16 micro-batches?" in (
        x.box.inner_text()
    )
    options = x.box.locator(".x-options button").all_inner_texts()
    assert options == ["13 %", "16 %", "27 %", "Just show me"]
    x.press("16 %")
    said = "Yes. With 16 they wait 9 of 57 units; with 8, 9 of 33 units"
    assert said in x.box.inner_text()
    assert round(100 * Pipeline(num_microbatches=16).facts["idle"]) == 16


def test_the_answer_is_drawn_and_stays_until_the_figure_changes(explore):
    """The edge goes to 16 micro-batches, and the old end is a dotted line."""
    x = explore(PAGE, "pipelines", asked=True)
    ghosts = x.box.locator("svg path.x-ghost")
    assert ghosts.count() == 0
    x.press("16 %")
    assert x.field("Micro-batches").input_value() == "16" and ghosts.count() == 1
    assert x.box.locator(".x-verdict").is_visible()
    x.fill("Micro-batches", 15)
    assert "You changed the figure" in x.box.inner_text()
    x.press("Back to the question")
    assert x.field("Micro-batches").input_value() == "8"
    assert x.box.locator(".x-verdict").is_visible()


def test_pieces_of_one_micro_batch_share_a_number_where_letters_have_no_room(explore):
    """In ZBV on a wide page, numbers beside each other differ."""
    x = explore(PAGE, "pipelines")
    x.page.set_viewport_size({"width": 1280, "height": 800})
    assert "F0" in x.box.locator("svg text").all_text_contents()
    x.field("Schedule").select_option("ZBVZeroBubble")
    row = x.box.locator("svg .x-work:has([data-id^='a 0 '])")
    cells = row.evaluate_all("""all => all.map(one => [one.dataset.batch,
        document.querySelector(`[data-id="t ${one.querySelector("rect").dataset.id}"]`)
            ?.textContent ?? ""])""")
    for (batch, words), (following, more) in pairwise(cells):
        assert words in ("", batch) and not (batch == following and words and more)
    assert {words for _, words in cells} >= set("01234567")


NAMED = """([box, id]) => [
    ...box.querySelectorAll(`svg text[data-id^="t ${id} "]`)].map(one => {
        const { left, right } = one.getBoundingClientRect();
        return [one.dataset.id.split(" ")[3], one.textContent, left, right]; })"""


@pytest.mark.parametrize("width", [390, 1280])
def test_numbers_never_go_and_never_lie_on_each_other(explore, width):
    """With 16 micro-batches too, the numbers that fit are there, or every fourth is."""
    x = explore(PAGE, "pipelines")
    x.page.set_viewport_size({"width": width, "height": 800})
    x.field("Schedule").select_option("1F1B")
    every, fourth = set(range(8)), {0, 4, 8, 12}
    for count, schedule, kind, wanted in (
        (8, "1F1B", "F", every),
        (8, "1F1B", "B", every),
        (16, "1F1B", "B", set(range(10)) | fourth),
        (16, "GPipe", "F", fourth),
        (16, "GPipe", "B", set(range(10)) | fourth),
    ):
        x.fill("Micro-batches", count)
        x.field("Schedule").select_option(schedule)
        for rank in range(4):
            found = x.page.evaluate(NAMED, [x.box.element_handle(), f"a {rank}"])
            places = sorted((left, right) for *_, left, right in found)
            assert all(a[1] <= b[0] + 1.5 for a, b in pairwise(places)), (count, rank)
            shared = schedule == "1F1B" and rank == 3  # F and B touch: one number
            said = {
                int(words.lstrip("FB"))
                for of, words, *_ in found
                if of == kind or (shared and words[0] not in "FB")
            }
            assert said >= wanted, (count, schedule, kind, rank)
