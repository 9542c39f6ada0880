"""Collectives can be stepped through by keyboard, in a 390 px wide window."""

from allranks.topics import Collectives


def holdings(x) -> list[str]:
    """Return what each rank holds, as a screen reader says it."""
    return x.box.locator("svg").first.get_attribute("aria-label").split("; ")


def test_steps_move_chunks_until_all_hold_the_sum(explore):
    """The slider and the buttons step, and after the last step all hold the sum."""
    x = explore("book/ch4_ranks", "collectives")
    assert "Step 3, reduce" in x.summary
    x.press("Back")
    assert "Step 2, reduce: 0 → 1, 1 → 2, 2 → 3, 3 → 0, 1 MB" in x.summary
    assert holdings(x)[0] == "rank 0: chunk 0 1, chunk 1 1101, chunk 2 1001, chunk 3 1"
    for _ in range(4):
        x.press("Next", " ")
    assert "Done: each rank holds what all_reduce promises." in x.summary
    assert all(row.count("1111") == 4 for row in holdings(x))
    x.field("Steps done").focus()
    x.page.keyboard.press("Home")
    assert "Before the first step." in x.summary


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
    state = {"alpha_us": 2.5, "gb_per_s": 10.0, "step": 3}
    facts = Collectives.compute("all_to_all", "pairwise", 7, 1001, **state)
    assert x.summary == facts["summary"] and "7 ranks" in x.summary
    x.fill("B, GB/s per link", 0)
    assert "B, GB/s per link: must be above 0, not 0" in x.error
    x.field("Ranks, W").fill("")
    assert "type a whole number" in x.error and x.summary == facts["summary"]
    x.fill("Ranks, W", 900_000)
    assert "900000 ranks do not fit here: at most 8" in x.error
    x.fill("Ranks, W", 1)
    assert "0 steps" in x.summary and x.field("Steps done").is_hidden()
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
