"""Buckets and a reader's trace work by keyboard, in a 390 px wide window."""

import re
from pathlib import Path

import pytest

from allranks.base.units import amount
from allranks.topics import Buckets
from allranks.topics.buckets import traces
from allranks.topics.kit import bundle

EXAMPLE = bundle.TOPICS / "buckets" / "example_trace.json"
TRACE = "Your trace (.json)"
PAGE = {"model": "gpt2", "batch_size": 8, "world_size": 8}  # what the page begins with
PAGE |= {"tflops": 100, "alpha_us": 10, "gb_per_s": 20}


def test_knobs_move_the_step_and_bad_ones_say_why(explore):
    """The summary is Python's, and a bad value is refused until it is possible."""
    x = explore("book/ch5_ddp", "buckets")
    wide = "document.documentElement.scrollWidth <= innerWidth"
    assert x.page.evaluate(wide)
    x.fill("Samples per rank", 2)
    assert x.summary == Buckets(**{**PAGE, "batch_size": 2}).facts["summary"]
    assert x.field("bucket_cap_mb, MiB").is_hidden()
    x.field("bucket_cap_mb is set").focus()
    x.page.keyboard.press("Space")
    x.fill("bucket_cap_mb, MiB", 1000)
    assert "in 1 bucket." in x.summary
    x.fill("TFLOP/s per rank", 0)
    refused = "TFLOP/s per rank: must be above 0, not 0"
    assert refused in x.error and "in 1 bucket." in x.summary
    x.field("Model").select_option("own")
    assert refused in x.error  # the 0 is still in its field, and still not possible
    x.fill("Layers, numbers:MFLOP", "1000:2; 5")
    assert "'1000:2; 5' is no layer: write numbers:MFLOP" in x.error
    x.fill("Layers, numbers:MFLOP", "1000000:2, 500000:1")
    facts = Buckets.compute(
        **Buckets(**PAGE).state
        | {
            "batch_size": 2,
            "bucket_cap_mb": 1000,
            "model": "own",
            "layers": "1000000:2, 500000:1",
        }
    )
    assert x.summary == facts["summary"] and "null" not in x.box.inner_text()
    assert refused in x.error and x.field("TFLOP/s per rank").input_value() == "0"


def test_a_readers_trace_stands_beside_the_model(explore, tmp_path):
    """A trace comes from a file or the example button; a bad one gets a sentence."""
    x = explore("book/ch5_ddp", "buckets")
    pictures = x.box.locator("svg")
    assert pictures.count() == 1
    for name, text, reason in (
        ("a.json", "no trace", "this is no JSON"),
        ("b.json", "{}", "there are no traceEvents"),
        ("c.json", '{"traceEvents": []}', "no gloo or nccl event in it"),
    ):
        Path(tmp_path, name).write_text(text)
        x.field(TRACE).set_input_files(tmp_path / name)
        x.box.locator(".x-error", has_text=reason).wait_for()
        assert pictures.count() == 1
    x.field(TRACE).set_input_files(EXAMPLE)
    found = traces.lanes(EXAMPLE.read_text("utf8"))
    summary = Buckets(**PAGE, trace=found).facts["summary"]
    x.box.locator(".x-summary", has_text="In the trace").wait_for()
    assert x.summary == summary and not x.error
    assert pictures.count() == 2 and "Trace, 2 ranks" in x.box.inner_text()
    x.press("Remove the trace")
    assert pictures.count() == 1
    x.press("Show an example trace", " ")
    assert x.summary == summary and pictures.count() == 2
    x.fill("Ranks, W", 2)
    assert pictures.count() == 2  # the trace stays while the model changes


def test_each_box_says_what_it_is_and_the_picture_fits_on_a_phone(explore):
    """Boxes have a name or number where there is room, and always a tooltip."""
    x = explore("book/ch5_ddp", "buckets")
    facts = Buckets(**PAGE).facts
    named = x.box.locator("svg g > title")
    assert named.count() == 1 + len(facts["layers"]) + len(facts["buckets"])
    titles = x.box.locator("svg g > title").all_text_contents()
    assert any(title.startswith("bucket 0, ") for title in titles)
    words = x.box.locator("svg g > text").all_text_contents()
    assert {"forward", "last"} <= set(words)  # the others are too thin on a phone
    assert not any(word.isdigit() for word in words)  # blocks and buckets are no pairs
    assert x.box.locator("svg").first.evaluate(
        "svg => svg.parentElement.scrollWidth <= svg.parentElement.clientWidth"
    )


def test_red_is_the_wait_and_each_bucket_gets_its_gradients(explore):
    """A rank waits from backward's end on, as long as the facts say, and only there."""
    x = explore("book/ch5_ddp", "buckets")
    facts = Buckets(**PAGE).facts

    def span(name: str) -> tuple[float, float]:
        box = x.box.locator(f'[data-id="{name}"]')
        start, width = (float(box.get_attribute(a)) for a in ("x", "width"))
        return start, start + width

    start, end = span("exposed")
    forward = span("does forward")
    scale = (forward[1] - forward[0]) / facts["forward"]
    assert abs(end - start - facts["exposed"] * scale) < 0.01
    assert abs(start - span("does block 0")[1]) < 0.01
    assert abs(end - span(f"sends {len(facts['buckets']) - 1}")[1]) < 0.01
    assert x.box.locator(".x-answer .x-fall").count() == len(facts["buckets"])
    chosen = x.box.locator('[data-id="chosen"]')
    low = chosen.bounding_box()["y"]
    x.field("bucket_cap_mb is set").focus()
    x.page.keyboard.press("Space")
    x.fill("bucket_cap_mb, MiB", 1000)  # all in one: more is exposed
    assert chosen.bounding_box()["y"] < low - 5


# The words through which the curve goes.
CROSSED = """box => {
    const line = box.querySelector('[data-id="curve"]'), out = [];
    const points = line.getTotalLength(), at = line.getScreenCTM();
    const dots = [...Array(2000).keys()].map(i =>
        line.getPointAtLength(points * i / 1999).matrixTransform(at));
    for (const text of box.querySelectorAll("svg text")) {
        const { left, right, top, bottom } = text.getBoundingClientRect();
        if (text.textContent && dots.some(({ x, y }) =>
            left < x && x < right && top + 3 < y && y < bottom - 3))
            out.push(text.textContent);
    }
    return out;
}"""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_curve_goes_through_no_word_and_least_is_at_its_least(explore, width):
    """With every model, and the handle at both ends and at the least."""
    x = explore("book/ch5_ddp", "buckets")
    x.page.set_viewport_size({"width": width, "height": 800})
    handle = x.box.get_by_role("slider", name="bucket_cap_mb, the handle")
    for model in ("gpt2", "mlp", "digits"):
        x.field("Model").select_option(model)
        for key in ("Home", "End"):
            handle.press(key)
            assert not x.box.evaluate(CROSSED), (model, key)
    x.press("Reset")
    assert not x.box.evaluate(CROSSED)
    times = Buckets(**PAGE).facts["curve"]
    least = x.box.get_by_text(f"least: {amount(min(times), 's')}", exact=True)
    box, line = (
        one.bounding_box() for one in (least, x.box.locator('[data-id="curve"]'))
    )
    lowest = [i for i, time in enumerate(times) if time == pytest.approx(min(times))]
    places = [line["x"] + line["width"] * i / (len(times) - 1) for i in lowest]
    assert any(box["x"] - 12 < at < box["x"] + box["width"] + 12 for at in places)


def test_before_the_answer_each_bucket_hangs_on_its_gradients(explore):
    """They move with the guess, and one is right that is off by at most a tenth."""
    x = explore("book/ch5_ddp", "buckets", asked=True)
    facts = Buckets(**PAGE).facts
    falls = x.box.locator(".x-fall:visible")
    assert falls.count() == len(facts["buckets"])
    before = falls.last.get_attribute("d")
    grip = x.box.get_by_role("slider", name="your guess: when all_reduce begins")
    hidden = facts["sending"] - facts["exposed"]
    for _ in range(11):  # 20 to the whole of backward
        grip.press("ArrowLeft")
    assert falls.last.get_attribute("d") != before
    guess = 11 / 20 * facts["backward"]
    assert 0 < abs(hidden - guess) <= facts["sending"] / 10
    x.press("This is my guess")
    verdict = x.box.locator(".x-verdict")
    assert f"Yes, {amount(hidden, 's')} of it. " in verdict.inner_text()
    # A third of the sending was once called about half of it.
    x.page.evaluate("localStorage.clear()")
    x.page.reload()
    for _ in range(8):
        grip.press("ArrowLeft")
    x.press("This is my guess")
    assert f"The answer: “{amount(hidden, 's')} of it”" in verdict.inner_text()


def test_a_guess_is_dragged_under_backward_and_stays_beside_the_answer(explore):
    """The bar begins behind backward, and cannot be sent before it."""
    x = explore("book/ch5_ddp", "buckets", asked=True)
    facts, drawn = Buckets(**PAGE).facts, x.box.locator("svg").first
    hides = re.compile(r"hidden: [\d.]+ ms\?")
    assert not hides.search(drawn.text_content())
    grip = x.box.get_by_role("slider", name="your guess: when all_reduce begins")
    x.drag(grip, -40)
    start = float(grip.get_attribute("aria-valuenow"))
    assert facts["forward"] < start < facts["forward"] + facts["backward"]
    assert hides.search(drawn.text_content())
    grip.press("Home")
    assert float(grip.get_attribute("aria-valuenow")) == facts["forward"]
    x.press("This is my guess")
    verdict = x.box.locator(".x-verdict").inner_text()
    assert verdict.startswith(
        f"You guessed that {amount(facts['backward'], 's')} hide. The answer: "
    )
    assert "your guess" in drawn.text_content()
    x.fill("Samples per rank", 2)  # another question
    assert "your guess" not in drawn.text_content()
