"""A reader changes the workers, follows a batch, and sees who waits."""

from allranks.topics import Loader

PAGE = "book/ch9_data"


def reds(x) -> int:
    """Count the gaps in which the model is drawn as waiting."""
    return x.box.locator("svg .x-wait").count()


def chosen(x) -> list[str]:
    """Return the parts of the drawing that show the batch that is followed."""
    framed = x.box.locator("svg .x-chosen")
    return framed.evaluate_all(
        "all => all.map(one => one.closest('[data-id]').dataset.id)"
    )


def test_workers_are_added_until_the_model_need_not_wait(explore):
    x = explore(PAGE, "loader")
    assert x.summary == Loader().facts["summary"]
    assert reds(x) > 3, "one worker is too slow"
    x.press("One worker more")
    x.page.keyboard.press("Enter")  # the button keeps the focus
    assert x.summary == Loader(num_workers=3).facts["summary"]
    assert reds(x) == 1, "the first batch of an epoch is never there"
    drawing = x.box.locator("svg").text_content()
    assert "waits 0 %after start" in drawing and "waitsstart" not in drawing
    x.press("One worker less")
    assert x.summary == Loader(num_workers=2).facts["summary"]
    assert reds(x) > 3
    x.box.get_by_text("+ a worker").locator("..").click()
    x.press("One worker more")
    x.field("Batch to follow").focus()
    x.page.keyboard.press("End")
    assert reds(x) == 0, "at the end of the epoch the queue is full"
    x.fill("cores", 1)
    assert "One core is the limit" in x.summary
    assert x.summary == Loader(num_workers=4, cores=1).facts["summary"]
    assert reds(x) > 0, "four batches come at once, and then none for a while"


def test_one_number_answers_the_question(explore):
    """What is possible, what is reached and what is said are one number: 16.7.

    Before the answer no step is drawn but the first: they could be counted.
    """
    x = explore(PAGE, "loader", asked=True)
    steps = x.box.locator('svg [data-id^="step "]:visible')
    assert steps.count() == 1
    x.box.locator(".x-ask").get_by_role("button", name="16.7", exact=True).click()
    said = x.box.locator(".x-verdict").inner_text()
    assert said.startswith("Yes.") and "the workers 16.7" in said
    assert "In these 60 batches" not in said, "it would be the same number"
    drawing = x.box.locator("svg").text_content()
    assert "16.7 steps/s" in drawing and "waits 58 %" in drawing
    assert "16.7 steps/s, and the model waits 58 % of the time" in x.summary
    assert steps.count() > 4


def test_a_batch_is_followed_by_press_and_by_keys(explore):
    x = explore(PAGE, "loader")
    x.fill("num_workers", 3)
    x.box.locator('svg [data-id="load 4"]').click()
    assert chosen(x) == ["load 4", "place 1 4", "place 0 4", "step 4"]
    x.field("Batch to follow").focus()
    x.page.keyboard.press("ArrowRight")
    batch = Loader(num_workers=3).facts["batches"][5]
    told = x.box.locator(".x-below").inner_text()
    assert f"Batch 5: worker {batch[0]} is asked" in told
    for _ in range(10):
        x.press("Next")
    assert "Batch 15: worker 0" in x.box.locator(".x-below").inner_text()
    step = x.box.locator('svg [data-id="step 15"]')
    assert step.get_attribute("data-from") == "load 15", "it is seen to come from there"
    assert not x.box.locator('svg [data-id="step 0"]').count(), "time has moved on"


def test_the_queue_is_drawn_slot_by_slot(explore):
    """The next batch lies at the bottom, and never more are drawn than there may be."""
    x = explore(PAGE, "loader")
    x.fill("num_workers", 3)
    x.field("Batch to follow").fill("20")
    ready, taken = Loader(num_workers=3).facts["batches"][20][3:5]
    lies = x.box.locator('svg rect[data-id^="place "][data-id$=" 20"]')
    places = [int(one.get_attribute("data-id").split()[1]) for one in lies.all()]
    assert places == [3, 2, 1, 0] and taken - ready == 90
    heights = [one.bounding_box()["y"] for one in lies.all()]
    assert heights == sorted(heights)


def test_no_workers_and_refusals_have_their_words(explore):
    x = explore(PAGE, "loader")
    x.fill("num_workers", 0)
    assert "Nobody loads while it works" in x.summary
    assert "process" in x.box.locator("svg").text_content()
    less = x.button("One worker less")
    assert less.get_attribute("aria-disabled") == "true"
    x.fill("prefetch_factor", 17)
    assert "must be at most 16, not 17" in x.error
    x.fill("ms to load a batch", 0)
    assert "must be 0.1 to 10000" in x.error


def test_all_that_is_drawn_stays_in_the_drawing(explore):
    """Sixteen workers or none, a phone's width: nothing leaves the picture."""
    x = explore(PAGE, "loader")
    inside = """all => all.every(one => {
        const { x, width, y, height } = one.getBBox();
        const box = one.ownerSVGElement.viewBox.baseVal;
        return x >= -1 && y >= -1 && x + width <= box.width + 1
            && y + height <= box.height + 1; })"""
    parts = x.box.locator("svg text, svg rect, svg path")
    heights = set()
    for workers in 0, 1, 16:
        x.fill("num_workers", workers)
        for load in 1, 5000:
            x.fill("ms to load a batch", load)
            assert parts.evaluate_all(inside)
            heights.add(x.box.locator("svg").get_attribute("viewBox").split()[3])
    assert len(heights) == 1, "the drawing must not jump"


def test_what_a_real_loader_did_is_set_beside_the_model(explore):
    x = explore(PAGE, "loader")
    counts = [3, 4, 5, 6]  # two more than were taken
    x.measure({"counts": counts, "by": [], "equal": True, "summary": "As it says."})
    assert x.box.locator(".x-measured").inner_text() == "As it says."
    table = x.box.get_by_role("table", name="Prepared by the real loader")
    assert table.locator("tbody tr").count() == len(counts)
    cells = table.locator("tbody td").all_inner_texts()
    assert cells[0::2] == cells[1::2] == [str(count) for count in counts]


def test_a_workers_waiting_is_drawn(explore):
    """It is dashed, since a worker is no rank, from its last batch to its next."""
    x = explore(PAGE, "loader")
    pauses = x.box.locator("svg .x-pause rect")
    assert pauses.count() == 0, "one worker is never idle"
    x.fill("num_workers", 4)
    x.fill("ms of the model's step", 60)
    facts = Loader(num_workers=4, step_ms=60).facts
    batches = facts["batches"]
    for one in pauses.all():
        k = int(one.get_attribute("data-id").removeprefix("pause "))
        (worker, *_, ready, _, _), (same, _, begin, *_) = batches[k], batches[k + 4]
        assert worker == same and begin > ready
    assert pauses.count() >= 4
    assert "x-idle" in pauses.first.get_attribute("class")
    assert "full" in x.box.locator("svg").text_content()
