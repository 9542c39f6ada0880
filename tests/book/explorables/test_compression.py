"""A reader chooses a method, drags the bandwidth, and sees who is fastest."""

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
    assert "From 11 ranks on" in x.summary
    x.field("Method").select_option("local")
    x.fill("Steps per average, H", 100)
    want = Compression(method="local", inner_steps=100).facts
    assert x.summary == want["summary"]
    x.fill("Steps per average, H", 0)
    assert "must be at least 1, not 0" in x.error


def test_the_bandwidth_follows_the_hand_and_the_keys(explore):
    x = explore(PAGE, "compression")
    handle = x.box.locator("svg [role=slider]")
    before = float(handle.get_attribute("aria-valuenow"))
    box = handle.bounding_box()
    x.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    x.page.mouse.down()
    x.page.mouse.move(box["x"] + box["width"] / 2 - 60, box["y"] + 20, steps=4)
    x.page.mouse.up()
    speed = float(handle.get_attribute("aria-valuenow"))
    assert (
        speed < before / 2 and x.summary == Compression(gb_per_s=speed).facts["summary"]
    )
    handle.focus()
    for _ in range(10):
        x.page.keyboard.press("ArrowRight")
    assert float(handle.get_attribute("aria-valuenow")) > 2 * speed


def test_models_and_links_set_their_numbers(explore):
    x = explore(PAGE, "compression")
    x.field("Model").select_option("GPT-2 small, on H100s")
    assert "10.5 ms compute" in x.summary
    x.field("Link").select_option("a home network")
    assert "Fastest here: PowerSGD" in x.summary
    x.fill("width of a matrix", 700)
    assert x.field("Model").input_value() == ""


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
