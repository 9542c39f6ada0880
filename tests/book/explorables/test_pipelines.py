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


def change_before_the_answer(x):
    """Pull the right edge while the question is open, and return the question's box."""
    edge = x.box.get_by_role("slider", name="Micro-batches, the right edge")
    ask = x.box.locator(".x-ask")
    first = ask.inner_text()
    edge.scroll_into_view_if_needed()
    place = edge.locator(".x-handle").bounding_box()
    x.page.mouse.move(place["x"] + 3, place["y"] + 10)
    x.page.mouse.down()
    x.page.mouse.move(place["x"] + 51, place["y"] + 10)
    assert x.field("Micro-batches").input_value() == "10"
    assert ask.inner_text() == first  # nothing changes under the finger
    x.page.mouse.up()
    return ask


def test_a_drag_before_the_answer_leaves_the_question_there(explore):
    """It says that it is about another figure, and its answer is of that one."""
    x = explore(PAGE, "pipelines", asked=True)
    ask = change_before_the_answer(x)
    assert "27 % of this step, red. How much is it with 16" in ask.inner_text()
    assert "You changed the figure; this is about how it was." in ask.inner_text()
    assert x.box.locator(".x-summary").is_visible()
    x.press("16 %")
    assert "Yes. With 16 they wait 9 of 57 units; with 8, 9 of 33" in ask.inner_text()
    assert x.field("Micro-batches").input_value() == "16"


def test_a_question_that_was_left_is_asked_of_this_figure_or_as_it_was(explore):
    x = explore(PAGE, "pipelines", asked=True)
    first = x.box.locator(".x-ask").inner_text()
    ask = change_before_the_answer(x)
    x.press("Back to the question")
    assert ask.inner_text() == first and not x.box.locator(".x-summary").is_visible()
    change_before_the_answer(x)
    x.press("Ask me about this one")
    assert "Ranks wait 23 % of this step" in ask.inner_text()
    assert "Just show me" in ask.inner_text()


NAMED = """([box, id]) => [
    ...box.querySelectorAll(`svg text[data-id^="t ${id} "]`)].map(one => {
        const { left, right, bottom } = one.getBoundingClientRect();
        const piece = box.querySelector(`[data-id="${one.dataset.id.slice(2)}"]`);
        const cell = piece.getBoundingClientRect();
        return [one.textContent, one.dataset.id.split(" ")[3], left, right,
            bottom <= cell.top + 3, cell.right - cell.left]; })"""


@pytest.mark.parametrize("width", [390, 1280])
def test_numbers_are_on_all_pieces_of_a_kind_or_in_the_margin(explore, width):
    """On pieces of 14 px and more; else every fourth micro-batch is in the margin."""
    x = explore(PAGE, "pipelines")
    x.page.set_viewport_size({"width": width, "height": 800})
    counted = set()
    for count, schedule, pieces in (
        (4, "1F1B", 4),
        (8, "1F1B", 8),
        (8, "ZBVZeroBubble", 16),
        (11, "1F1B", 11),
        (16, "1F1B", 16),
        (16, "GPipe", 16),
        (16, "InterleavedZeroBubble", 32),
    ):
        x.fill("Micro-batches", count)
        x.field("Schedule").select_option(schedule)
        every = [
            x.page.evaluate(NAMED, [x.box.element_handle(), f"a {rank}"])
            for rank in range(4)
        ]
        dots = x.box.locator("svg .x-dot").count()
        case = count, schedule
        names = [name for found in every for name in found]
        inside = {kind for _, kind, _, _, above, _ in names if not above}
        margin = {kind for _, kind, _, _, above, _ in names if above}
        assert inside | margin >= {"F"} and not inside & margin, case
        for found in every:
            for row in (True, False):
                ends = sorted(name[2:4] for name in found if name[4] == row)
                assert all(a[1] <= b[0] + 1.5 for a, b in pairwise(ends)), case
        for kind in inside:
            each = [[name for name in found if name[1] == kind] for found in every]
            assert all(len(found) == pieces for found in each), case
            assert min(name[5] for found in each for name in found) >= 14, case
            letters = {name[0][0] in "FBIW" for found in each for name in found}
            assert len(letters) == 1, case
        if margin:
            assert dots and not any(
                above for found in every[1:] for *_, above, _ in found
            )
            above = [(int(name[0]), name[1]) for name in every[0] if name[4]]
            assert {i for i, _ in above} <= set(range(0, 16, 4)), case
            kinds = [kind for _, kind in above]
            assert kinds == sorted(kinds, key="FBI".index), case  # never side by side
        counted |= {"margin"} if margin else set()
        counted |= {"pieces"} if inside else set()
    assert counted == {"margin", "pieces"}


RUNS = """box => {
    const size = (all, name) => all.map(one => Number(one.getAttribute(name)));
    const thin = [...box.querySelectorAll("svg .x-work .x-box")].filter(
        one => one.getAttribute("width") < 8);
    const runs = [...box.querySelectorAll("svg .x-run")], sum = (a, b) => a + b;
    return [thin.length, runs.length, size(thin, "width").reduce(sum, 0),
        size(runs, "width").reduce(sum, 0),
        runs.filter(one => getComputedStyle(one).stroke === "none").length]; }"""


def test_pieces_too_thin_for_edges_have_one_line_around_their_run(explore):
    """On a phone, with 16 micro-batches, forward would vanish without it."""
    x = explore(PAGE, "pipelines")
    assert x.box.evaluate(RUNS)[:2] == [0, 0]
    x.fill("Micro-batches", 16)
    thin, runs, width, around, bare = x.box.evaluate(RUNS)
    assert thin == 2 * 4 * 16 and 8 <= runs < thin and not bare
    assert around == pytest.approx(width, abs=0.1)


MEET = """box => {
    const all = [...box.querySelectorAll('svg [data-id^="sent "] rect')]
        .map(one => one.getBoundingClientRect());
    return all.some((a, i) => all.slice(i + 1).some(b =>
        Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1.5)); }"""


def test_what_arrives_is_as_small_on_its_way_and_hides_nothing(explore):
    """A group is moved, where a box would be stretched to what it comes from."""
    x = explore(PAGE, "pipelines")
    x.fill("Micro-batches", 12)
    moments = int(x.field("Moment").get_attribute("max"))
    arrived = x.box.locator('svg [data-id^="sent "]')
    seen = set()
    for _ in range(moments):
        assert not x.box.evaluate(MEET)
        seen |= set(arrived.evaluate_all("all => all.map(one => one.localName)"))
        x.press("Next", " ")
    assert seen == {"g"}
    words = x.box.locator("svg text").all_text_contents()
    assert {"arrived", "not sent yet", "held"} <= set(words)


def test_one_schedule_alone_has_the_room_of_two(explore):
    """And the drawing is as high as it was, so that nothing moves."""
    x = explore(PAGE, "pipelines")
    lane = x.box.locator("svg [data-id='a 3 F 0 3']")
    both, high = (
        lane.bounding_box(),
        x.box.locator(".x-stage svg").bounding_box()["height"],
    )
    x.field("Compare with").select_option("")
    assert lane.bounding_box()["height"] > 2 * both["height"]
    assert x.box.locator(".x-stage svg").bounding_box()["height"] == high
