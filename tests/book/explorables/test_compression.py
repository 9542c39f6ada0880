"""A reader chooses a method, drags the bandwidth, and sees who is fastest."""

from itertools import pairwise

import pytest

from allranks.base.units import amount
from allranks.topics import Compression

PAGE = "book/ch8_ddp_by_hand"


def test_a_method_is_chosen_in_the_drawing_or_below(explore):
    x = explore(PAGE, "compression")
    assert x.summary == Compression().facts["summary"]
    x.button("Top-k").focus()
    x.page.keyboard.press("Enter")
    assert x.summary == Compression(method="topk").facts["summary"]
    assert x.button("Top-k").get_attribute("aria-pressed") == "true"
    x.fill("Top-k keeps, %", 10)
    assert "from 11 ranks on" in x.box.inner_text()
    x.field("Method").select_option("local")
    x.fill("Steps per average, H", 100)
    want = Compression(method="local", inner_steps=100).facts
    assert x.summary == want["summary"]
    x.fill("Steps per average, H", 0)
    assert "must be at least 1, not 0" in x.error


def test_the_bandwidth_follows_the_hand_and_the_keys(explore):
    x = explore(PAGE, "compression")
    handle = x.box.get_by_role("slider", name="bandwidth of a link")
    before = float(handle.get_attribute("aria-valuenow"))
    box = handle.bounding_box()
    x.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    x.page.mouse.down()
    x.page.mouse.move(box["x"] + box["width"] / 2 - 60, box["y"] + 20, steps=4)
    x.page.mouse.up()
    speed = float(handle.get_attribute("aria-valuenow"))
    want = Compression(gb_per_s=speed).facts["summary"]
    assert speed < before / 2 and x.summary == want
    handle.focus()
    for _ in range(10):
        x.page.keyboard.press("ArrowRight")
    assert float(handle.get_attribute("aria-valuenow")) > 2 * speed


@pytest.mark.parametrize("speed", [11, 12, 13])
def test_the_strip_frames_the_way_that_is_fastest(explore, speed):
    """Also close to the border of two ways, which a grid of speeds would miss."""
    x = explore(PAGE, "compression")
    x.fill("B, GB/s per link", speed)
    times = Compression(gb_per_s=speed).facts
    frame = x.box.locator("svg .x-chosen[data-id^='here']")
    assert frame.get_attribute("data-id") == f"here {times['fastest']}"


def test_models_and_links_set_their_numbers(explore):
    x = explore(PAGE, "compression")
    x.field("Model").select_option("GPT-2 small on H100s")
    assert "10.5 ms compute" in x.summary
    x.field("Link").select_option("a home network")
    assert "Fastest here: PowerSGD" in x.summary
    x.fill("width of a matrix", 700)
    assert x.field("Model").input_value() == ""


def test_the_question_has_one_answer_and_says_what_loss_changes(explore):
    """Each way is an option; nothing shows its time before."""
    x = explore(PAGE, "compression", asked=True)
    drawing = x.box.locator("svg").first
    offers = x.box.locator(".x-options button").all_inner_texts()
    assert len(offers) == 6 and offers[-2:] == ["Local steps", "Just show me"]
    assert "855 ms" not in drawing.text_content()
    assert x.box.get_by_role("slider", name="your guess").count() == 0
    x.box.locator(".x-options button").nth(2).press("Enter")
    verdict = x.box.locator(".x-verdict").inner_text()
    assert verdict.startswith("You said “Top-k”. The answer: “Local steps”.")
    # bf16 trains as well as fp32, and local steps need a few more.
    good = Compression().facts["as_good"]
    assert f"For equal loss, it still wins: {amount(good[4], 's')}." in verdict
    assert "855 ms" in drawing.text_content()


def test_what_the_link_is_busy_with_is_drawn(explore):
    """PowerSGD sends the fewest bytes: its link is busy with starting messages."""
    x = explore(PAGE, "compression")
    wide = "all => all.reduce((sum, one) => sum + one.getBBox().width, 0)"
    for name, _, _, messages, _, communication, *_ in Compression().facts["ways"]:
        parts = [
            x.box.locator(f"svg [data-id='{part} {name}']").evaluate_all(wide)
            for part in ("starts", "restarts", "hidden", "sent")
        ]
        starting = messages * Compression().alpha_us * 1e-6 / communication
        assert abs(sum(parts[:2]) / sum(parts) - starting) < 0.03, name


def test_what_is_marked_has_a_word(explore):
    """The step before a change, the step without compression, and one winner."""
    x = explore(PAGE, "compression")
    x.page.set_viewport_size({"width": 1280, "height": 800})
    drawing = x.box.locator(".x-stage svg")
    assert drawing.get_by_text("without compression").count() == 1
    assert drawing.get_by_text("50 GB/s = 400 Gb/s").count() == 1
    assert not drawing.locator(".x-ghost").count()
    x.fill("Ranks, W", 64)
    assert drawing.locator(".x-ghost").count() > 1
    assert drawing.get_by_text("before", exact=True).count() == 1
    x.fill("B, GB/s per link", 0.4)
    strong = drawing.locator("g[data-id^=row] text.x-strong").all_text_contents()
    assert len(strong) == 2 and strong[0] == "No compression", "chosen, and fastest"


def test_both_ends_stay_in_the_drawing(explore):
    """With 2 and 1,024 ranks, the slowest link and the fastest, all is inside."""
    x = explore(PAGE, "compression")
    inside = """all => all.every(one => {
        const { x, width, y, height } = one.getBBox();
        const box = one.ownerSVGElement.viewBox.baseVal;
        return x >= -1 && y >= -1 && x + width <= box.width + 1
            && y + height <= box.height + 1; })"""
    shapes = x.box.locator("svg text, svg rect:not([fill=transparent]), svg path")
    for ranks in 2, 1024:
        x.fill("Ranks, W", ranks)
        for speed in 0.001, 10_000:
            x.fill("B, GB/s per link", speed)
            assert shapes.evaluate_all(inside)


def test_a_slow_link_leaves_no_slivers(explore):
    """A bar of over five times the shortest is cut, with a gap and a word for it."""
    x = explore(PAGE, "compression")
    cuts = x.box.locator("svg .x-cut")
    assert cuts.count() == 0
    x.fill("B, GB/s per link", 0.73)
    facts = Compression(gb_per_s=0.73).facts
    steps = [way[-1] for way in facts["ways"]]
    longest = [max(s, g or 0) for s, g in zip(steps, facts["as_good"], strict=True)]
    assert cuts.count() == sum(one > 5 * min(steps) for one in longest) > 1
    assert "bars with a gap are longer" in x.box.locator("svg").first.text_content()
    computes = x.box.locator("svg [data-id^='computes ']")
    widths = computes.evaluate_all("all => all.map(one => one.getBBox().width)")
    assert len(widths) == 5 and min(widths) >= 30
    inside = """all => all.every(one => { const { x, width } = one.getBBox();
        return x + width <= one.ownerSVGElement.viewBox.baseVal.width + 1; })"""
    assert x.box.locator("svg text, svg rect").evaluate_all(inside)


@pytest.mark.parametrize("width", [390, 1280])
def test_bars_that_are_cut_end_in_the_order_of_their_lengths(explore, width):
    """62.2 s and 5.82 s are both longer than drawn, but not equally long."""
    x = explore(PAGE, "compression")
    x.page.set_viewport_size({"width": width, "height": 800})
    x.fill("B, GB/s per link", 0.73)
    ends = x.box.locator("svg [data-id^='waits ']").evaluate_all(
        """all => all.map(one => {
            const { x, width } = one.getBBox(); return x + width; })"""
    )
    facts = Compression(gb_per_s=0.73).facts
    steps = [way[-1] for way in facts["ways"]]
    assert sum(step > 5 * min(steps) for step in steps) == 3
    order = sorted(range(5), key=steps.__getitem__)
    assert sorted(range(5), key=ends.__getitem__) == order
    assert min(b - a for a, b in pairwise(sorted(ends))) > 4


def test_before_the_answer_each_way_has_its_bytes_on_the_link(explore):
    """From one zero, on the scale of time of the whole step; none of them is hidden."""
    x = explore(PAGE, "compression", asked=True)
    carries = x.box.locator("svg [data-id^='carries ']")
    boxes = carries.evaluate_all(
        "all => all.map(one => one.getBBox()).map(({ x, width }) => [x, width])"
    )
    sent = [way[2] for way in Compression().facts["ways"][1:]]
    assert len({start for start, _ in boxes}) == 1
    for (_, width), num_bytes in zip(boxes, sent, strict=True):
        share = num_bytes / sent[0]
        assert width == pytest.approx(max(2, boxes[0][1] * share), abs=0.5)
    assert not x.box.locator("svg .x-idle:visible").count()  # no empty box
    x.press("Just show me")
    assert not carries.count()
    words = x.box.locator(".x-stage svg text").all_text_contents()
    assert {"computes", "encodes", "waits", "more steps"} <= set(words)


def test_no_line_of_a_sentence_begins_with_a_comma(explore):
    """A number that ends a line takes the mark behind it along."""
    x = explore(PAGE, "compression")
    number = x.box.locator(".x-say").nth(2)
    lines = """one => {
        const range = document.createRange();
        range.setStart(one.nextSibling, 0);
        range.setEnd(one.nextSibling, 1);
        const rows = [one, range].map((part) => part.getClientRects()[0]);
        return rows.map(({ top, bottom }) => (top + bottom) / 2); }"""
    assert x.box.locator(".x-sentence").inner_text().count("rank 2, local") == 1
    for width in range(300, 420, 4):
        x.page.set_viewport_size({"width": width, "height": 844})
        number_at, comma_at = number.evaluate(lines)
        assert abs(number_at - comma_at) < 10, width
