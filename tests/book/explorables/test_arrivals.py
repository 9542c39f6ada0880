"""The intro's four ranks wait for one another, by finger and by keyboard."""

import pytest

from allranks.topics import Arrivals

PAGE = "book/intro"


def printed(x) -> str:
    """Return what the figure says that the cell prints."""
    return x.box.locator(".x-report").inner_text()


def drawn(x) -> str:
    """Return the words in the drawing."""
    return x.box.locator(".x-stage svg").first.text_content()


def numbers(x) -> list[list]:
    """Return (digits, hues, y) of each rank's own number, and of what it will hold."""
    return [
        [
            (
                one.text_content(),
                one.locator("[style]").count(),
                one.bounding_box()["y"],
            )
            for one in x.box.locator(f'[data-id^="{kind}"]').all()
        ]
        for kind in ("term", "hold")
    ]


def test_a_rank_is_taken_away_and_the_others_wait(explore):
    """The report and the summary are Python's; bringing the rank back repairs it."""
    x = explore(PAGE, "arrivals", asked=True)
    first = Arrivals().facts
    assert printed(x) == first["output"] == "ranks 0–3: tensor([6.])"
    x.press("They wait, without a word.")
    assert x.box.locator(".x-verdict").inner_text().startswith("Yes. ")
    # The answer shows what was asked about: rank 1 is away.
    facts = Arrivals(arrives=[700, None, 1100, 2200]).facts
    assert x.summary == facts["summary"] and printed(x) == facts["output"]
    assert "ranks 0, 2 and 3 wait in `dist.all_reduce(x)`" in printed(x)
    assert x.box.locator("svg .x-wait").count() == 3
    assert f"{facts['waited_s']:g} s lost in waiting" in drawn(x)
    waiting = numbers(x)
    x.press("Bring rank 1 back")
    assert x.summary == first["summary"]
    assert x.box.locator(".x-code code").inner_text() == first["code"]
    # Each rank's number has gone from its lane to the sum, and the sum to each rank.
    for rank, (term, hold) in enumerate(zip(*numbers(x), strict=True)):
        assert term[:2] == (f"{rank}", 1) and hold[:2] == ("6", 4)
        assert term[2] > waiting[0][rank][2] + 40 and hold[2] < waiting[1][rank][2] - 40


def test_a_late_rank_makes_the_others_wait_longer(explore):
    """The drawn widths are the times; the edge of a rank's work can be dragged."""
    x = explore(PAGE, "arrivals")
    edge = x.box.get_by_role("slider", name="rank 0 calls all_reduce after, ms")
    edge.focus()
    x.page.keyboard.press("End")
    arrives = [2500, 1600, 1100, 2200]
    facts = Arrivals(arrives=arrives).facts
    assert x.summary == facts["summary"] and "Rank 0 comes last" in x.summary
    works = [
        float(x.box.locator(f'[data-id="work{r}"]').get_attribute("width"))
        for r in range(4)
    ]
    waits = [
        float(x.box.locator(f'[data-id="wait{r}"]').get_attribute("width"))
        for r in (1, 2, 3)
    ]
    scale = works[0] / arrives[0]
    assert all(abs(w - at * scale) < 0.1 for w, at in zip(works, arrives, strict=True))
    shown = [w / scale / 1000 for w in waits]
    assert all(
        abs(a - b) < 0.001 for a, b in zip(shown, facts["waits"][1:], strict=True)
    )
    x.drag(edge, -1500 * scale)
    assert abs(int(edge.get_attribute("aria-valuenow")) - 1000) <= 50
    assert "Rank 3 comes last" in x.summary
    for rank in range(4):
        slider = f"rank {rank} calls all_reduce after, ms"
        x.box.get_by_role("slider", name=slider).focus()
        x.page.keyboard.press("Home")
    assert "nobody waits" in x.summary and "nobody waits" in drawn(x)


def test_the_first_screen_of_a_laptop_has_the_figure_and_its_question(explore):
    """The figure is at most 420 px high, and the question's options can be seen."""
    x = explore(PAGE, "arrivals", asked=True)
    x.page.set_viewport_size({"width": 1280, "height": 800})
    x.page.evaluate("scrollTo(0, 0)")
    assert x.box.locator(".x-stage").bounding_box()["height"] <= 420
    last = x.box.get_by_role("button", name="Just show me").bounding_box()
    assert last["y"] + last["height"] <= 800
    assert x.page.locator("article .sd-btn").count() == 2


@pytest.mark.parametrize("width", [1280, 540, 390])
def test_nothing_below_the_figure_jumps(explore, width):
    """Its room on the page is as high as it is, before and after the answer."""
    x = explore(PAGE, "arrivals", asked=True)
    x.page.set_viewport_size({"width": width, "height": 844})
    x.page.reload()
    room = x.box.evaluate("one => parseFloat(getComputedStyle(one).minHeight)")
    for press in (None, "They get an error." if width < 1280 else "They get 5."):
        if press:
            x.press(press)
        x.box.evaluate("one => { one.style.minHeight = 0; }")
        height = x.box.bounding_box()["height"]
        assert height == pytest.approx(room, abs=1), press


def test_time_passes_once_when_the_figure_is_drawn(explore):
    """Ranks carry their numbers to the line, and not again after a change."""
    x = explore(PAGE, "arrivals")
    moving = "one => one.getAnimations().length"
    x.page.emulate_media(reduced_motion="no-preference")
    x.measure({"summary": ""})  # draws it anew
    stage = x.box.locator(".x-stage")
    assert stage.evaluate(moving) == 1
    halt = "(one, ms) => { const [it] = one.getAnimations(); it.pause(); "
    halt += "it.currentTime = ms; }"
    numbers = x.box.locator('.x-drag [data-id^="chip"]')
    added = x.box.locator('[data-id="term0"]')
    seen = "one => getComputedStyle(one).opacity"
    for ms, places, opacity in ((500, 1, "0"), (1300, 3, "0"), (2900, 4, "1")):
        stage.evaluate(halt, ms)
        at = {round(one.bounding_box()["x"]) for one in numbers.all()}
        assert len(at) == places and added.evaluate(seen) == opacity
    stage.evaluate(halt, 500)
    x.press("Take rank 1 away")  # whoever acts does not wait for it
    assert stage.evaluate(moving) == 0
    x.page.emulate_media(reduced_motion="reduce")
    x.measure({"summary": ""})
    assert stage.evaluate(moving) == 0


def test_a_rank_that_is_away_stands_outside_of_its_row(explore):
    """Its number is beside the +, and not at 0 s, as if it had called at once."""
    x = explore(PAGE, "arrivals")
    x.press("Take rank 1 away")
    row, number, back = (
        x.box.locator(f"svg {one}").bounding_box()
        for one in ('[data-id="work1"]', '[data-id="term1"]', '[data-key="rank1"]')
    )
    assert row["x"] + row["width"] < number["x"]
    assert number["x"] + number["width"] < back["x"] + back["width"]
