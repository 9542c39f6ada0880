"""A reader types a number, drags it, and looks at one format after another."""

import pytest

from allranks.topics import Numbers

PAGE = "book/ch10_precision"
INSIDE = """all => all.every(one => {
    const { x, width, y, height } = one.getBBox();
    const box = one.ownerSVGElement.viewBox.baseVal;
    return x >= -1 && y >= -1 && x + width <= box.width + 1
        && y + height <= box.height + 1; })"""


def test_a_typed_number_is_followed_and_what_is_none_is_refused(explore):
    x = explore(PAGE, "numbers")
    assert x.summary == Numbers().facts["summary"]
    x.fill("a number", "65519")
    x.fill("add to it", "1")
    x.field("look closely at").select_option("fp16")
    state = {"number": "65519", "add": "1", "form": "fp16"}
    assert x.summary == Numbers(**state).facts["summary"]
    x.fill("a number", "1e")
    assert "a number: must be a number, such as 0.1, 1e-4 or 2^-24, not “1e”" in x.error
    assert x.summary == Numbers(**{**state, "number": "1"}).facts["summary"]
    x.page.keyboard.type("-4")
    assert not x.error and x.summary.startswith("0.0001 in fp16 is 0.00010001659")
    x.fill("a number", "2^-24")
    assert "a subnormal number of fewer bits" in x.summary


def test_the_number_follows_hand_and_keys_and_keeps_its_sign(explore):
    x = explore(PAGE, "numbers")
    x.fill("a number", "-3")
    handle = x.box.get_by_role("slider", name="the number, as a power of ten")
    x.drag(handle.locator("circle"), 60)
    typed = x.field("a number").input_value()
    assert float(typed) < -1e6
    added = x.field("add to it").input_value()  # in the same ratio to the number
    assert float(added) / float(typed) == pytest.approx(1e-4 / -3, rel=0.02)
    assert x.summary == Numbers(number=typed, add=added).facts["summary"]
    assert "away" not in x.box.locator("svg").first.text_content()
    handle.focus()
    for _ in range(8):
        x.page.keyboard.press("ArrowLeft")
    assert -1 < float(x.field("a number").input_value()) / float(typed) - 0.01 < 0.01
    x.page.keyboard.press("End")
    assert float(x.field("a number").input_value()) == -1e8  # a phone's axis
    x.page.set_viewport_size({"width": 1280, "height": 800})
    handle.focus()
    x.page.keyboard.press("End")
    assert "bf16 is -inf: the largest number is 3.38953139e38." in x.summary


def test_a_row_is_a_button_that_chooses_its_format(explore):
    x = explore(PAGE, "numbers")
    row = x.box.get_by_role("button", name="Look closely at fp8 e4m3: ")
    row.focus()
    x.page.keyboard.press("Enter")
    assert x.field("look closely at").input_value() == "e4m3"
    assert row.get_attribute("aria-pressed") == "true"
    assert x.summary.startswith("1 in fp8 e4m3 is 1. Its neighbors are 0.9375 and")


def test_all_of_it_stays_in_the_drawing(explore):
    """On a phone, with numbers that are beyond the axis or have many digits."""
    x = explore(PAGE, "numbers")
    for number in "0", "1e39", "0.333333333333", "-1.4e-45", "65519":
        for form in "fp32", "fp16", "e4m3":
            x.fill("a number", number)
            x.field("look closely at").select_option(form)
            shown = x.box.locator("svg text, svg circle, svg path")
            assert shown.evaluate_all(INSIDE), (number, form)


def test_the_question_hides_the_sums_until_it_is_answered(explore):
    x = explore(PAGE, "numbers", asked=True)
    sums = x.box.locator("svg .x-answer")
    assert not sums.first.is_visible()
    options = x.box.locator(".x-options button").all_inner_texts()
    assert options == ["1.0001", "1", "1.0078125", "Just show me"]
    x.press("1.0001")
    assert "The answer: “1”. After 1 comes 1.0078125" in x.box.inner_text()
    assert sums.first.is_visible()


def bits(x) -> str:
    """Return the bits that are shown, as one word."""
    return "".join(x.box.locator("svg [data-key^='bit ']").all_text_contents())


def test_a_bit_is_flipped(explore):
    """Each flip is a number, also among subnormal ones and to infinity; NaN is none."""
    x = explore(PAGE, "numbers")
    x.field("look closely at").select_option("fp16")
    assert bits(x) == Numbers().facts["formats"]["fp16"]["bits"].replace(" ", "")
    x.press("Bit 1 of sign, 0: flip it")
    x.press("Bit 10 of mantissa, 0: flip it")
    assert x.field("a number").input_value() == "-1.00097656"
    assert bits(x) == "1011110000000001"
    for place in range(2, 6):
        x.press(f"Bit {place} of exponent, 1: flip it")
    added = float(x.field("add to it").input_value())
    assert added < 1e-8  # as small beside the number as before
    assert bits(x) == "1000000000000001" and "5.96046448e-8" in x.summary
    x.press("Bit 10 of mantissa, 1: flip it")
    assert x.field("a number").input_value() == "-0"
    x.fill("a number", "32768")
    x.press("Bit 5 of exponent, 0: flip it")
    assert x.field("a number").input_value() == "2^16"
    assert "fp16 is inf: the largest number is 65504." in x.summary
    x.press("Bit 5 of exponent, 1: flip it")
    assert x.field("a number").input_value() == "32768"
    x.fill("a number", "32800")
    assert x.box.get_by_role("button", name="Bit 5 of exponent").count() == 0  # NaN


def test_the_sum_is_dragged_until_another_mark_is_nearer(explore):
    x = explore(PAGE, "numbers")
    total = x.box.get_by_role("slider", name="what is added, on the ruler")
    total.focus()
    for _ in range(4):
        x.page.keyboard.press("ArrowRight")
    assert "gives 1, as before" in x.summary
    x.page.keyboard.press("ArrowRight")  # a tenth of a gap each: half a gap, and 1e-4
    assert "gives 1.0078125. " in x.summary
    x.drag(total, -80)
    assert x.field("add to it").input_value().startswith("-0.00")
    x.field("look closely at").select_option("fp32")
    x.fill("add to it", "1e-4")
    assert "839 gaps away" in x.box.locator("svg").first.text_content()
    x.drag(total, -60)  # from the edge, where it stands
    assert float(x.field("add to it").input_value()) < 1.4 * 2**-23
    assert not x.error


def test_marks_say_what_becomes_of_the_sum(explore):
    """The sum, “lost” or “inf”, in each row; a number that does not fit is yellow.

    A row says what it stores; of a sum with a number that did not fit it says nothing.
    """
    x = explore(PAGE, "numbers")
    marks = x.box.locator("svg [data-key^='row '] .x-answer")
    said = [words.split(" is ")[1] for words in marks.all_text_contents()]
    assert said == ["1.000100021.0001", *["1, as beforelost"] * 5]
    x.fill("a number", "70000")
    assert marks.all_text_contents()[3:] == ["–"] * 3
    rows = x.box.locator("svg [data-key^='row ']")
    assert rows.nth(2).locator("text").all_text_contents() == [
        *["bf16", "70144", "512", "lost"]
    ]
    assert rows.nth(5).locator("text").all_text_contents()[1:] == ["448", "32", "–"]
    wrong = x.box.locator("svg [data-key^='row '] circle.x-wrong")
    assert wrong.count() == 3  # fp16, and both of fp8


def test_ranges_can_be_compared_on_a_phone(explore):
    """The narrowest is wider than its dot; what goes on beyond the axis has tips."""
    x = explore(PAGE, "numbers")
    rows = x.box.locator("svg [data-key^='row ']")
    width = "one => one.querySelector('.x-box').getBBox().width"
    widths = [row.evaluate(width) for row in rows.all()]
    assert min(widths) > 3 * 9 and widths[5] < widths[3] / 1.5 < widths[0] / 2
    tips = [row.locator(".x-goes-on").count() for row in rows.all()]
    assert tips == [2, 2, 2, 0, 0, 0]
    x.fill("a number", "1e20")
    said = rows.first.locator("text").nth(1)
    assert float(said.text_content()) == pytest.approx(1e20, rel=0.01)
    assert len(said.text_content()) <= 9
    x.page.set_viewport_size({"width": 1280, "height": 800})
    assert x.box.locator("svg .x-goes-on").count() == 0
