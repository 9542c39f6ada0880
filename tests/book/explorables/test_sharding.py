"""The brick wall works by keyboard and by hand, in a 390 px wide window."""

import pytest
from playwright.sync_api import expect

from allranks.base.units import amount
from allranks.topics import BrickWall
from allranks.topics.sharding.sums import PRECISIONS, STAGES
from tests.book.explorables.test_shell import ON_EACH_OTHER, PAGES

PAGE = PAGES.get("sharding", "")
# What the page shows first: four ranks, four layers, 4 + 4 + 8 bytes.
HERE = {"billions": 8, "precision": "float32"}
pytestmark = pytest.mark.skipif(not PAGE, reason="no page shows the brick wall yet")


def knife(x):
    """Return the knife."""
    return x.box.get_by_role("slider", name="The knife, which cuts what is below it")


def say(x, name: str, key: str) -> None:
    """Press a key on a number of the sentence."""
    x.box.get_by_role("slider", name=f"{name}, in the sentence").focus()
    x.page.keyboard.press(key)


def test_a_reader_cuts_and_walks_through_the_step(explore):
    """At each stage and moment the summary is Python's, and red is who waits."""
    x = explore(PAGE, "sharding")
    waits = x.box.locator('.x-stage [data-id^="wait "]')
    for stage, name in enumerate(STAGES):
        assert knife(x).get_attribute("aria-valuetext").startswith(name)
        for step, still in enumerate(BrickWall(**HERE, stage=stage).facts["waits"]):
            assert (
                x.summary == BrickWall(**HERE, stage=stage, step=step).facts["summary"]
            )
            assert waits.count() == (4 if still else 0)
            x.press("Next")
        x.box.get_by_role("slider", name="moment, in the film").focus()
        x.page.keyboard.press("Home")
        knife(x).focus()
        x.page.keyboard.press("ArrowUp")
    assert knife(x).get_attribute("aria-valuenow") == "3"


def test_the_knife_is_pulled_up_by_hand(explore):
    """One wall is one notch; what each stop holds stands beside the others."""
    x = explore(PAGE, "sharding")
    knife(x).scroll_into_view_if_needed()
    box = x.box.locator('[data-id="haft"]').bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    x.page.mouse.move(*middle)
    x.page.mouse.down()
    for notch, name in enumerate(STAGES):
        x.page.mouse.move(middle[0], middle[1] - 72 * notch, steps=4)
        assert x.summary.startswith(f"{name} on 4 ranks")
        peaks = [peak for peak, _ in BrickWall(**HERE).facts["each"]]
        words = x.box.locator(".x-stage svg text").all_text_contents()
        assert all(amount(peak, "B") in words for peak in peaks)
        assert x.box.locator('.x-stage [data-id^="most "]').count() == len(STAGES)
    x.page.mouse.up()
    yellow = x.box.locator('.x-stage [data-id^="over "]')
    over = yellow.evaluate_all("all => all.map(one => one.dataset.id)")
    assert over == ["over 0", "over 1"]


def test_a_stop_of_the_knife_is_pressed(explore):
    """Each has its name; the knife itself stands at one of them."""
    x = explore(PAGE, "sharding")
    for stage in (3, 1, 0, 2):
        x.press(f"Cut as {STAGES[stage]}")
        assert x.summary == BrickWall(**HERE, stage=stage).facts["summary"]
        assert x.button(f"Cut as {STAGES[stage]}").count() == 0


def test_the_answer_comes_to_each_stop_until_the_reader_takes_over(explore):
    """One after the other, so that DDP's bytes are seen before ZeRO-3's."""
    x = explore(PAGE, "sharding", asked=True, reduced_motion="no-preference")
    x.press("ZeRO-3, by half")
    assert knife(x).get_attribute("aria-valuenow") == "0"
    expect(knife(x)).to_have_attribute("aria-valuenow", "1")
    expect(knife(x)).to_have_attribute("aria-valuenow", "3")
    x.page.evaluate("localStorage.clear()")
    x.page.reload()
    x.press("none")
    knife(x).press("ArrowUp")  # now it is the reader's
    x.page.wait_for_timeout(1500)
    assert knife(x).get_attribute("aria-valuenow") == "1"
    assert "It gathers weights twice" in x.box.inner_text()


def test_a_reader_who_takes_over_misses_no_measure(explore):
    """All four stops show what they hold before, and what they send at the answer."""
    x = explore(PAGE, "sharding", asked=True, reduced_motion="no-preference")
    held = x.box.locator('.x-stage [data-id^="most "]:visible')
    sent = x.box.locator('.x-stage [data-id^="sent "]:visible')
    assert held.count() == len(STAGES) and not sent.count()
    x.press("ZeRO-3, by half")
    x.press("Next")  # during the climb, which ends there
    stop = knife(x).get_attribute("aria-valuenow")
    x.page.wait_for_timeout(1300)
    assert knife(x).get_attribute("aria-valuenow") == stop
    words = x.box.locator(".x-stage svg text:visible").all_text_contents()
    said = [
        words.count(one) + words.count(f"sends {one}") for one in ("48 GB", "72 GB")
    ]
    assert said == [3, 1] and held.count() == len(STAGES)
    assert sent.count() >= len(STAGES) - 1  # in DDP's first moments nothing is sent


def test_eight_ranks_and_layers_are_a_choice(explore):
    x = explore(PAGE, "sharding")
    x.field("Ranks × layers").select_option("8")
    now = {**HERE, "world_size": 8, "num_layers": 8}
    assert x.summary == BrickWall(**now).facts["summary"]
    x.fill("ranks", 3)
    assert x.field("Ranks × layers").input_value() == "0"


def test_bricks_fly_from_their_owners_and_sums_from_all(explore):
    """A brick has its owner's hue and comes from there; a sum comes from each rank."""
    x = explore(PAGE, "sharding", reduced_motion="no-preference")
    knife(x).focus()
    x.page.keyboard.press("End")
    x.page.wait_for_timeout(500)
    owner = x.box.locator('[data-id="w 2 1 2"]').bounding_box()
    x.press("Next")  # layer 0 computes, layer 1 arrives
    moved = """box => box.querySelector('[data-id="w 0 1 2"]').getAnimations()
        .map(one => one.effect.getKeyframes()[0].transform)"""
    [start] = x.box.evaluate(moved)
    x.page.wait_for_timeout(500)
    there = x.box.locator('[data-id="w 0 1 2"]').bounding_box()
    far = float(start.split("(")[1].split("px")[0])
    assert abs(far - (owner["x"] - there["x"])) < 2 and far > 20
    hatch = x.box.locator('[data-id="w 0 1 2"]').get_attribute("style")
    assert "--rank-2" in hatch
    x.box.get_by_role("slider", name="moment, in the film").focus()
    x.page.keyboard.press("End")
    for _ in range(4):  # back to where layer 2's gradients collapse
        x.page.keyboard.press("ArrowLeft")
    assert "the gradients of layer 2 collapse" in x.summary
    for rank in range(4):
        flies = x.box.locator(f'[data-id^="fly m {rank} 2 "]')
        ways = flies.evaluate_all("all => all.map(one => one.dataset.from)")
        assert ways == [f"g {other} 2 {rank}" for other in range(4)]
        # All that travels is hatched, and gives way to the stripes of the sum.
        fills = flies.evaluate_all("all => all.map(one => one.getAttribute('fill'))")
        assert all(fill.startswith("url(#hatch") for fill in fills)
        bands = x.box.locator(f'[data-id^="m {rank} 2 "]')
        assert bands.evaluate_all("all => all.every(one => !one.dataset.from)")
    x.page.wait_for_timeout(500)
    seen = "all => all.some(one => getComputedStyle(one).opacity > 0)"
    assert not x.box.locator('[data-id^="fly "]').evaluate_all(seen)


def test_what_is_cut_has_a_brick_per_rank_and_layer(explore):
    """Below the knife each rank has its own part alone, and above it all."""
    x = explore(PAGE, "sharding")

    def drawn(kind: str) -> int:
        return x.box.locator(f'.x-stage [data-id^="{kind} "]').count()

    for stage in range(4):
        assert x.box.locator('[data-id="s 1 2 1"]').count() == (1 if stage else 0)
        assert drawn("s") == 4 * 4
        # Of ZeRO-3's first layer the parts of the other three ranks arrive as well.
        assert drawn("w") == 4 * 4 + (4 * 3 if stage == 3 else 0)
        knife(x).focus()
        x.page.keyboard.press("ArrowUp")


def test_no_word_lies_on_another_where_most_is_drawn(explore):
    """With two and eight ranks and layers, in the moments with the longest words."""
    x = explore(PAGE, "sharding")
    for size in "Home", "End":
        for name in "layers", "ranks", "parameters (billion)":
            say(x, name, size)
        for stage in range(4):
            x.field("what is cut").select_option(str(stage))
            for _ in range(2 * 8 + 5):
                x.press("Next")
                assert x.box.evaluate(ON_EACH_OTHER.replace("select", "nothing")) == []
            x.box.get_by_role("slider", name="moment, in the film").focus()
            x.page.keyboard.press("Home")
    assert x.box.evaluate("box => box.scrollWidth <= box.clientWidth")


def test_the_answer_is_the_bytes_and_follows_the_precision(explore):
    """Nothing sent is drawn before; with float32 gradients, DDP sends as much."""
    x = explore(PAGE, "sharding", asked=True)
    sent = x.box.locator('.x-stage [data-id^="sent "]:visible')
    assert sent.count() == 0
    knife(x).focus()
    x.page.keyboard.press("End")  # playing is no answer
    assert sent.count() == 0 and x.box.locator(".x-options").is_visible()
    x.press("ZeRO-3, by half")
    said = "Yes. It gathers weights twice: 72 GB, and the others send 48 GB."
    assert said in x.box.inner_text() and sent.count() == len(STAGES)
    assert x.summary == BrickWall(**HERE, stage=3).facts["summary"]
    numbers = [*PRECISIONS][2]
    x.field("precision").select_option(label=numbers)
    x.press("Ask me about this one")
    x.press("none")
    assert "Yes. ZeRO-3 sends 48 GB in a step, and DDP 48 GB." in x.box.inner_text()


def test_a_number_that_cannot_be_is_refused(explore):
    x = explore(PAGE, "sharding")
    x.fill("ranks", 9)
    assert x.error.endswith("ranks: must be at most 8, not 9")
    x.fill("ranks", 4)
    x.fill("parameters (billion)", 0)
    assert x.error.endswith("parameters (billion): must be from 0.1 to 500") or (
        "must be from 0.1 to 500" in x.error
    )
    assert x.summary == BrickWall(**HERE).facts["summary"]


def test_no_line_of_the_question_is_cut_while_a_finger_drags(explore):
    """The summary comes up over the whole question, or stays where it is."""
    x = explore(PAGE, "sharding", asked=True)
    x.press("Just show me")
    cut = """box => {
        const ask = box.querySelector(".x-ask").getBoundingClientRect();
        const { top } = box.querySelector(".x-summary").getBoundingClientRect();
        return ask.top < top && top < ask.bottom - 1; }"""
    for far in range(-60, 260, 40):  # how far up the page the figure is
        x.box.evaluate(
            "(box, y) => scrollBy(0, box.getBoundingClientRect().top + y)", far
        )
        haft = x.box.locator('[data-id="haft"]').bounding_box()
        x.page.mouse.move(haft["x"] + 20, haft["y"] + 10)
        x.page.mouse.down()
        assert x.box.get_attribute("class") and not x.box.evaluate(cut), far
        x.page.mouse.up()
