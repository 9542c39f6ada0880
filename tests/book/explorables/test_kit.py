"""All explorables keep what a reader types, and explain errors in the page's words."""

PAGE = "book/ch6_model_parallel"
STEP = "document.querySelector('.x-step input').value !== '%s'"


def test_what_was_refused_waits_for_what_makes_it_possible(explore):
    """A refused number stays in its field, and counts as soon as it is possible."""
    x = explore(PAGE, "pipelines")
    x.field("Schedule").select_option("Interleaved1F1B")
    for label, value in (("Ranks", 8), ("Micro-batches", 16)):
        x.fill(label, value)
    before = x.summary
    x.fill("Ranks", 3)
    ranks, batches = x.field("Ranks"), x.field("Micro-batches")
    assert "multiple of the number of rounds (5)" in x.error and x.summary == before
    x.press("Next")
    assert ranks.input_value() == "3" and ranks.get_attribute("aria-invalid")
    x.fill("Micro-batches", 5)
    assert (ranks.input_value(), batches.input_value()) == ("3", "5")
    assert not x.error and not ranks.get_attribute("aria-invalid")
    assert "on 3 ranks" in x.summary
    x.fill("Ranks", 99)
    assert x.error.endswith("Ranks is 99: at most 8 fit here")
    batches.fill("")  # two fields are wrong now, and each says why
    assert "Micro-batches: type a whole number" in x.error
    x.fill("Micro-batches", 6)
    assert "Ranks is 99" in x.error and ranks.input_value() == "99"
    x.fill("Ranks", 2)
    assert not x.error and "on 2 ranks" in x.summary
    x.fill("Ranks", 0)
    assert "Ranks: must be at least 1, not 0" in x.error
    x.press("Reset")
    assert not x.error and ranks.input_value() == "4"


def test_play_stops_for_a_reader(explore):
    """Anything a reader does stops Play, so that it can't overwrite what they type."""
    x = explore(PAGE, "pipelines", reduced_motion="no-preference")
    stop = {
        "Reset": lambda: x.press("Reset"),
        "typing": lambda: x.fill("Micro-batches", 99),
        "Next": lambda: x.press("Next"),
    }
    for name, act in stop.items():
        x.press("Play")
        at = x.field("Moment").input_value()
        x.page.wait_for_function(STEP % at)
        assert x.button("Pause").count() == 1, name
        act()
        assert x.button("Play").count() == 1, name
    assert x.field("Micro-batches").input_value() == "99"
