"""Collectives can be stepped through by keyboard, in a 390 px wide window."""

import pytest

from allranks.topics import Collectives


def holdings(x) -> list[str]:
    """Return what each rank holds, as a screen reader says it."""
    return x.box.locator("svg [role=img]").get_attribute("aria-label").split("; ")


def test_steps_move_chunks_until_all_hold_the_sum(explore):
    """The slider and the buttons step, and after the last step all hold the sum."""
    x = explore("book/ch4_ranks", "collectives")
    assert "Step 1, reduce" in x.summary
    x.press("Next")
    assert "Step 2, reduce: 0 → 1, 1 → 2, 2 → 3, 3 → 0, 1 MB" in x.summary
    assert holdings(x)[0] == "rank 0: chunk 0 1, chunk 1 1101, chunk 2 1001, chunk 3 1"
    for _ in range(4):
        x.press("Next", " ")
    assert "Done: each rank holds what all_reduce promises." in x.summary
    assert all(row.count("1111") == 4 for row in holdings(x))
    line = x.box.get_by_role("slider", name="Steps done, the line")
    line.focus()
    x.page.keyboard.press("Home")
    assert "Before the first step." in x.summary
    width = x.box.locator(".x-stage svg").bounding_box()["width"]
    x.drag(line.locator("circle"), (width - 84) * 0.22 / 2.5)  # 220 µs of 2.5 ms
    assert "Step 2, reduce" in x.summary


def test_collective_and_algorithm_follow_each_other(explore):
    """Only the collective's own algorithms are offered, and bad numbers are refused."""
    x = explore("book/ch4_ranks", "collectives")
    x.field("Algorithm").select_option("tree")
    x.field("Collective").select_option("all_to_all")
    offered = x.field("Algorithm").locator("option").all_inner_texts()
    assert offered == ["pairwise", "bruck"]
    x.fill("Ranks, W", 7)
    x.fill("float32 numbers in the whole buffer", 1001)
    x.fill("α, µs per message", 2.5)
    state = {"alpha_us": 2.5, "gb_per_s": 10.0, "step": 1}
    facts = Collectives.compute("all_to_all", "pairwise", 7, 1001, **state)
    assert x.summary == facts["summary"] and "7 ranks" in x.summary
    x.fill("B, GB/s per link", 0)
    assert "B, GB/s per link: must be above 0, not 0" in x.error
    x.field("Ranks, W").fill("")
    assert "type a whole number" in x.error and x.summary == facts["summary"]
    x.fill("Ranks, W", 900_000)
    assert "900000 ranks do not fit here: at most 8" in x.error
    x.fill("Ranks, W", 1)
    assert "0 steps" in x.summary and x.button("Next").is_hidden()
    assert x.box.get_by_role("slider", name="Steps done, the line").count() == 0
    x.press("Reset")
    assert "all_reduce by ring, 4 ranks" in x.summary and not x.error


def test_n_and_k_are_said_with_their_values(explore):
    """The page says what n counts, which differs by collective, and Bruck's k."""
    x = explore("book/ch4_ranks", "collectives")
    x.field("Collective").select_option("all_gather")
    assert "n = 4 MB (what each rank has at the end)" in x.box.inner_text()
    x.field("Collective").select_option("all_to_all")
    x.field("Algorithm").select_option("bruck")
    x.fill("Ranks, W", 8)
    words = x.box.inner_text()
    assert "n = 4 MB (what each rank brings), k = 12, α" in words


def test_an_algorithm_is_chosen_by_its_lane_and_red_says_who_waits(explore):
    """The lanes of the race are buttons; a rank without a message is marked."""
    x = explore("book/ch4_ranks", "collectives")
    waits = x.box.locator("svg .x-wait")
    assert not waits.count()  # in a ring, nobody
    assert x.button("ring: 660 µs").get_attribute("aria-pressed") == "true"
    x.press("naive: 2.46 ms")
    facts = Collectives(algorithm="naive", step=1).facts
    assert x.summary == facts["summary"] and "2 of 4 ranks wait" in x.summary
    assert waits.count() == len(facts["waiting"]) == 2
    assert x.field("Algorithm").input_value() == "naive"
    focused = x.page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused == "naive: 2.46 ms"


def test_what_each_rank_has_sent_grows_and_waits_for_the_answer(explore):
    """Python says it; while the question is open, one sees that it is not said."""
    x = explore("book/ch4_ranks", "collectives", asked=True)
    said = x.box.locator("svg text:visible").filter(has_text="sent ")
    assert said.all_text_contents() == ["sent ?"] * 4
    x.press("6 MB")
    assert said.all_text_contents() == ["sent 1 MB"] * 4
    x.press("naive: 2.46 ms")
    x.press("Next")
    x.press("Next")
    sent = Collectives(algorithm="naive", step=3).facts["sent"]
    assert sent == [0, 4_000_000, 4_000_000, 4_000_000]
    assert said.all_text_contents() == ["sent 0 B"] + ["sent 4 MB"] * 3
    assert x.box.locator('svg [data-id^="sent "]').count() == 3


def test_the_way_past_other_ranks_is_beside_their_cells(explore):
    """In a ring, what the last rank sends to the first crosses no cell."""
    x = explore("book/ch4_ranks", "collectives")
    crossed = x.box.evaluate(
        """box => [...box.querySelectorAll("svg path[stroke-linejoin]")].map((way) => {
            const { left, right } = way.getBoundingClientRect();
            return [...box.querySelectorAll("svg .x-box")].filter((cell) => {
                const { left: from, right: to } = cell.getBoundingClientRect();
                return right > from + 2 && left < to - 2; }).length; })"""
    )
    assert crossed == [0, 0]  # its ground and its hatch


# Show a step, and return by how many px each part flies down to its place.
FLIGHTS = """(box, step) => {
    const slider = box.querySelector(".x-steps input");
    slider.value = step;
    slider.dispatchEvent(new Event("input"));
    const moves = box.getAnimations({ subtree: true }).map(({ effect }) => [
        effect.target.dataset.id, effect.getKeyframes()[0].transform]);
    return Object.fromEntries(moves.filter(([, from]) => from).map(([id, from]) =>
        [id, -parseFloat(from.split(",")[1])])); }"""


def test_chunks_fly_from_their_sender_and_only_once(explore):
    """A copy comes as a whole, and a sum gets the stripes that are new in it."""
    x = explore("book/ch4_ranks", "collectives", reduced_motion="no-preference")
    pitch = (250 - 22) / 4  # px from rank to rank

    def flights(step: int) -> dict:
        x.page.wait_for_timeout(400)  # the last flight is over
        return x.box.evaluate(FLIGHTS, step)

    add = flights(2)  # rank 2 sends 110, the sum of ranks 1 and 2, to rank 3
    assert add["band 3 0 1"] == pytest.approx(pitch) and "3 0" not in add
    flights(3)
    copy = flights(4)
    cells = {name: by for name, by in copy.items() if name[0].isdigit()}
    assert cells == pytest.approx(
        {"1 0": pitch, "2 1": pitch, "3 2": pitch, "0 3": -3 * pitch}
    )
    x.page.wait_for_timeout(400)
    assert not [name for name in x.box.evaluate(FLIGHTS, 4) if name[0].isdigit()]


def test_thin_rows_are_plain_and_thick_ones_hatched(explore):
    """Four hues of stripes, 7 px high, would flicker."""
    x = explore("book/ch4_ranks", "collectives")
    striped = x.box.locator("svg [data-key^='way '] path[style*='url(']")
    assert striped.count() == 0
    x.fill("Ranks, W", 2)
    assert striped.count() > 0
