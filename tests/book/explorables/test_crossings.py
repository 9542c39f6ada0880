"""A reader drags the size along the axis, by hand and by keyboard."""

import pytest

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


def test_a_reader_compares_with_a_real_machine_and_adds_an_algorithm(explore):
    """Both are pressed in the drawing; a dot for each published size is shown."""
    x = explore("book/ch7_collectives", "crossings")
    dots = x.box.locator("svg circle[r='3.5']")
    assert dots.count() == 1  # that of the offer
    x.press("set to 8 real H100, and compare")
    real = Crossings(world_size=8, alpha_us=3.4, gb_per_s=450)
    assert x.summary == real.facts["summary"]
    assert x.field("Link").input_value() == "NVLink 4"
    assert dots.count() == 1 + len(real.facts["published"])
    card = x.button("allow halving and doubling, in the drawing")
    assert card.get_attribute("aria-pressed") == "false"
    card.press("Enter")
    real.change(halving=True)
    assert x.summary == real.facts["summary"] and ": halving takes " in x.summary
    assert x.field("allow halving and doubling").is_checked()


def test_the_answer_cannot_be_read_off_before_it_is_given(explore):
    """No point on a line, no number beside it, no bar and no winner is shown."""
    x = explore("book/ch7_collectives", "crossings", asked=True)
    shown = x.box.locator("svg [data-id^=dot], [data-cost]")
    words = x.box.locator(".x-stage svg text:visible")
    assert shown.count() == 0
    said = " ".join(words.all_text_contents())
    assert "naive" in said and "114 µs" not in said and "fastest" not in said
    x.press("114 µs")
    assert shown.count() == 6
    said = " ".join(words.all_text_contents())
    assert "114 µs" in said and "ring is fastest" in said


def test_each_line_ends_beside_its_name(explore):
    """All names stand at the right edge, however much slower an algorithm is."""
    x = explore("book/ch7_collectives", "crossings")
    for ranks in 4, 1024:
        x.fill("Ranks, W", ranks)
        edges = {}
        for name in "naive", "tree", "ring":
            line = x.box.locator(f"svg [data-id='way {name}']").bounding_box()
            words = x.box.locator(".x-stage svg").get_by_text(name, exact=True).last
            edges[name] = words.bounding_box()
            assert line["x"] + line["width"] < edges[name]["x"]
            assert abs(edges[name]["y"] + 8 - line["y"]) < 34
        assert edges["naive"]["y"] < edges["tree"]["y"] < edges["ring"]["y"]
        assert len({box["x"] for box in edges.values()}) == 1


def test_all_bars_have_one_scale_of_time(explore):
    """A bar is as long as its time, up to five times the fastest's, and then cut."""
    x = explore("book/ch7_collectives", "crossings")
    for ranks in 4, 1024:
        x.fill("Ranks, W", ranks)
        facts = Crossings(world_size=ranks).facts
        most = min(max(way[3] for way in facts["ways"]), 5 * facts["seconds"])
        widths = {}
        for name, _, _, time in facts["ways"]:
            bar = x.box.locator(f"[data-cost={name}]")
            widths[name] = bar.locator("rect").evaluate_all(
                "all => all.reduce((sum, one) => sum + one.getBBox().width, 0)"
            )
            assert bar.locator("> path").count() == (time > most)
        for name, _, _, time in facts["ways"]:
            assert abs(widths[name] / max(widths.values()) - min(1, time / most)) < 0.01


# What an algorithm's small drawing sends, and when the last of it has come, in ms.
SENT = """box => Object.fromEntries([...box.querySelectorAll("[data-run]")].map(one => [
    one.dataset.run, one.getAnimations({ subtree: true }).map(({ effect }) =>
        effect.getComputedTiming().endTime)]).map(([name, ends]) =>
            [name, [ends.length, Math.max(...ends)]]))"""


def test_small_drawings_send_each_message_on_one_clock(explore):
    """They move once the figure is in sight, unless a reader wants no motion."""
    x = explore("book/ch7_collectives", "crossings", reduced_motion="no-preference")
    x.page.wait_for_function(
        "() => document.querySelector('[data-run=ring]').getAnimations("
        "{ subtree: true }).length > 0"
    )
    found = x.box.evaluate(SENT)
    times = {name: time for name, _, _, time in Crossings().facts["ways"]}
    # Messages of one all_reduce on 4 ranks: 4 in each of the ring's 6 steps.
    assert {name: found[name][0] for name in times} == {
        "naive": 6,
        "tree": 6,
        "ring": 24,
    }
    for name in times:
        slower = times[name] / times["ring"]
        assert abs(found[name][1] / (2400 * slower) - 1) < 0.01
    still = explore("book/ch7_collectives", "crossings")
    still.page.wait_for_timeout(700)
    assert not still.box.evaluate("box => box.getAnimations({ subtree: true }).length")


ROWS = """all => all.map(one => {
    const box = (part) => part.getBoundingClientRect();
    const [name, value] = one.querySelectorAll("text");
    const rects = one.querySelectorAll("rect");
    return [name.textContent, value.textContent, box(rects[0]).left,
        Math.max(...[...rects].map(part => box(part).right)), box(value).left]; })"""


@pytest.mark.parametrize("width", [390, 1280])
def test_a_magnifier_compares_from_one_zero_and_on_a_linear_scale(explore, width):
    """Before the answer it shows one step of each, and how many there are."""
    x = explore("book/ch7_collectives", "crossings", asked=True)
    x.page.set_viewport_size({"width": width, "height": 800})
    facts = Crossings().facts
    rows = x.box.locator("svg [data-step]").evaluate_all(ROWS)
    steps = {name: (count, time / count) for name, count, _, time in facts["ways"]}
    assert [row[:2] for row in rows] == [
        [name, f"× {count}"] for name, (count, _) in steps.items()
    ]
    one = {row[0]: row[3] - row[2] for row in rows}
    for name in "naive", "ring":  # edges are a pixel wide
        expected = steps[name][1] / steps["tree"][1]
        assert one[name] / one["tree"] == pytest.approx(expected, abs=0.05)
    x.press("114 µs")
    rows = x.box.locator("svg [data-cost]").evaluate_all(ROWS)
    assert [row[1] for row in rows] == ["204 µs", "136 µs", "114 µs"]
    assert len({row[2] for row in rows}) == 1  # one zero
    assert all(row[3] < row[4] < row[3] + 12 for row in rows)
    head = x.box.locator(".x-stage svg").first
    for n, words in (1000, "At 1 kB:"), (10**10, "At 10 GB:"):
        x.fill("bytes, n", n)
        assert words in head.text_content()
    words = head.text_content()
    assert "10 µs" in words and "climbs" in words  # the axis has numbers


@pytest.mark.parametrize("width", [390, 1280])
def test_the_offer_is_not_on_the_upright_line(explore, width):
    x = explore("book/ch7_collectives", "crossings")
    x.page.set_viewport_size({"width": width, "height": 800})
    offer = x.box.locator("[data-key=real] text")
    line = x.box.locator("svg [role=slider] path")
    for n in 1000, 10**4, 10**5, 10**6, 10**7, 10**9, 10**10:
        x.fill("bytes, n", n)
        upright, box = line.bounding_box(), offer.bounding_box()
        assert not box["x"] < upright["x"] < box["x"] + box["width"], n


def test_the_strong_name_is_where_the_thick_line_ends(explore):
    """Although another algorithm is fastest at the size that is chosen."""
    x = explore("book/ch7_collectives", "crossings")
    x.fill("bytes, n", 41_000)
    assert "tree takes" in x.summary
    strong = x.box.locator("svg > text.x-strong").all_text_contents()
    assert [words for words in strong if "kB" not in words] == ["ring"]
