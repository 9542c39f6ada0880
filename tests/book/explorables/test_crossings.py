"""A reader drags the size along the axis, by hand and by keyboard."""

from allranks.topics import Crossings


def test_the_size_follows_the_hand_and_the_keys(explore):
    x = explore("book/ch7_collectives", "crossings")
    assert x.summary == Crossings().facts["summary"]
    handle = x.box.locator("svg [role=slider]")
    box = handle.bounding_box()
    x.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    x.page.mouse.down()
    x.page.mouse.move(box["x"] + box["width"] / 2 - 90, box["y"] + 40, steps=4)
    x.page.mouse.up()
    n = int(handle.get_attribute("aria-valuenow"))
    assert n < 100_000 and handle.get_attribute("aria-valuetext").endswith("kB")
    assert x.summary == Crossings(num_bytes=n).facts["summary"]
    assert ": tree takes " in x.summary
    handle.focus()
    for _ in range(40):
        x.page.keyboard.press("ArrowRight")
    assert int(handle.get_attribute("aria-valuenow")) > 10 * n
    assert ": ring takes " in x.summary


def test_links_set_both_numbers_and_own_ones_are_called_so(explore):
    x = explore("book/ch7_collectives", "crossings")
    x.field("Link").select_option("1 Gb/s Ethernet")
    assert x.summary == Crossings(alpha_us=50, gb_per_s=0.125).facts["summary"]
    x.fill("α, µs per message", 51)
    assert "this link: " in x.summary and x.field("Link").input_value() == ""
    x.fill("Ranks, W", 1)
    assert "must be at least 2, not 1" in x.error
    x.fill("Ranks, W", 6)
    x.field("allow halving and doubling").focus()
    x.page.keyboard.press("Space")
    assert "Halving needs a power of two" in x.summary


def test_both_ends_stay_in_the_drawing(explore):
    """With 2 and 1,024 ranks, 1 kB and 10 GB, all that is drawn is inside."""
    x = explore("book/ch7_collectives", "crossings")
    inside = """all => all.every(one => {
        const { x, width, y, height } = one.getBBox();
        const box = one.ownerSVGElement.viewBox.baseVal;
        return x >= -1 && y >= -1 && x + width <= box.width + 1
            && y + height <= box.height + 1; })"""
    for ranks in 2, 1024:
        x.fill("Ranks, W", ranks)
        for size in 1000, 10**10:
            x.fill("bytes, n", size)
            assert x.box.locator("svg text, svg circle, svg path").evaluate_all(inside)
