"""The mountain is asked about first, grows over time, and says what each part holds."""

import json

import pytest

from allranks.base.units import amount
from allranks.topics import Mountain
from allranks.topics.memory.figure import CHUNKS
from allranks.topics.memory.sums import KINDS
from tests.book.explorables.test_shell import PAGES

PAGE = PAGES.get("memory", "")
pytestmark = pytest.mark.skipif(not PAGE, reason="its page is not written yet")
KNOB, FLAG = "Moment, the knob below", "your flag: where the peak will be"


def facts_of(x, **changes) -> dict:
    """Return what Python makes of the page's state, and of changes."""
    state = json.loads(x.box.get_attribute("data-state"))
    return Mountain.compute(**{**state, **changes})


def peak(facts: dict) -> float:
    """Return the bytes of the peak."""
    return sum(facts["spans"][facts["peak"]][4])


def words(x) -> str:
    """Return all that stands in the drawing."""
    return " ".join(x.box.locator(".x-stage svg text").all_text_contents())


def test_a_flag_is_planted_before_the_mountain_is_there(explore):
    """Only the ground is drawn; the flag stays, and is judged by its phase."""
    x = explore(PAGE, "memory", asked=True)
    facts = facts_of(x)
    assert "peak" not in words(x).replace("drag me to the peak", "")
    assert words(x).count("?") == 1 + 4  # the note's, and what the step adds
    x.press("This is my guess")  # nothing was dragged, so it is none
    assert x.button("This is my guess").get_attribute("aria-disabled") == "true"
    assert not x.box.locator(".x-summary").is_visible()
    assert x.button("Just show me").is_visible()
    assert not x.button("Next").is_visible()  # there is no mountain to walk through
    flag = x.box.get_by_role("slider", name=FLAG, exact=True)
    flag.focus()
    for _ in range(60):  # to the right end: the optimizer's step
        x.page.keyboard.press("ArrowRight")
    assert "optimizer's step" in flag.get_attribute("aria-valuetext")
    x.press("This is my guess")
    verdict = x.box.locator(".x-verdict").inner_text()
    assert verdict.startswith("You said “in the optimizer's step”. The answer: “at the")
    assert f"peak {amount(peak(facts), 'B')}" in words(x)
    assert x.box.locator(".x-stage .x-open").count() == 1  # where it was planted
    assert x.summary == facts["summary"]


def test_the_moment_says_what_is_held(explore):
    """By key on the knob, by a click, and for as long as the pointer is there."""
    x = explore(PAGE, "memory")
    knob = x.box.get_by_role("slider", name=KNOB, exact=True)
    knob.focus()
    x.page.keyboard.press("Home")
    facts = facts_of(x, moment=0)
    assert x.summary == facts["summary"]
    for _ in range(2):
        x.page.keyboard.press("ArrowRight")
    held = facts["spans"][2][4]
    assert "Forward, block 1" in words(x) and "activations of blocks 0 to 1" in words(x)
    for kind, size in zip(KINDS, held, strict=True):
        assert f"{kind} {amount(size, 'B') if size else '–'}" in words(x)
    box = x.box.locator(".x-stage svg").bounding_box()
    x.page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 60)
    assert "Optimizer's step" in words(x) and "block 1" in x.summary
    x.page.mouse.click(box["x"] + box["width"] - 4, box["y"] + 60)
    assert x.summary == facts_of(x, moment=10_000)["summary"]


def test_the_mountain_is_revealed_once(explore):
    """Changes of the moment, and of the step, find it drawn to the end."""
    x = explore(PAGE, "memory", asked=True, reduced_motion="no-preference")
    left = """box => Math.max(...[...box.querySelectorAll(".x-sweep")].map(
        one => one.getAnimations()[0]?.effect.getComputedTiming().progress ?? 1))"""
    x.press("Just show me")
    assert x.box.evaluate(left) < 0.5  # it grows from the left
    x.page.wait_for_timeout(2600)
    knob = x.box.get_by_role("slider", name=KNOB, exact=True)
    for by in (-60, 40):
        x.drag(knob, by)
        assert x.box.evaluate(left) == 1
    x.press("Next")
    assert x.box.evaluate(left) == 1


def test_a_remedy_leaves_the_reader_at_the_same_moment(explore):
    """The loss in chunks is still the loss; a layer's backward is still the same."""
    x = explore(PAGE, "memory")
    knob = x.box.get_by_role("slider", name=KNOB, exact=True)
    assert knob.get_attribute("aria-valuetext") == "at the loss, backward"
    chunks = x.field(f"Loss in {CHUNKS} chunks")
    chunks.focus()
    x.page.keyboard.press("Space")
    assert knob.get_attribute("aria-valuetext").startswith("at the loss")
    for _ in range(4):
        x.press("Next")
    assert knob.get_attribute("aria-valuetext") == "in backward, block 13"
    x.field("Checkpoints around").select_option("layer")
    assert knob.get_attribute("aria-valuetext") == "in backward, block 13"


def test_remedies_lower_the_peak_until_it_fits(explore):
    """What does not fit is black on yellow, and gone when it fits; nothing is red."""
    x = explore(PAGE, "memory")
    yellow = x.box.locator(".x-stage svg .x-wrong")
    x.fill("The GPU's GB", 40)
    over = facts_of(x, gpu_gb=40)["over"]
    assert over and f"{amount(over, 'B')} too much" in words(x)
    assert yellow.count() == len(KINDS) + 1  # each kind's part, and the words' ground
    x.field("Checkpoints around").select_option("layer")
    x.field(f"Loss in {CHUNKS} chunks").focus()
    x.page.keyboard.press("Space")
    now = {"moment": 17, "gpu_gb": 40}  # it is the loss that a reader still looks at
    facts = facts_of(x, checkpointing="layer", loss_chunks=CHUNKS, **now)
    assert not facts["over"] and yellow.count() == 0
    assert x.box.locator(".x-stage .x-ghost").count() == 1  # the mountain before
    assert x.box.locator(".x-stage .x-wait").count() == 0
    assert x.summary == facts["summary"]


def test_a_model_sets_all_sizes_and_impossible_ones_are_refused(explore):
    """The list says so when a reader's sizes are of no model in it."""
    x = explore(PAGE, "memory")
    x.field("Model").select_option("gpt2")
    assert "124.44 million parameters" in x.summary
    assert x.field("Heads of keys and values").is_hidden()
    x.fill("Heads", 7)
    assert "Heads is 7: it must divide dim, 768" in x.error
    x.fill("Heads", 8)
    assert not x.error and x.field("Model").input_value() == ""
