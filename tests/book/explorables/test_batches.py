"""Readers see which rank gets which sample, by keyboard, in a 390 px wide window."""

from allranks.topics import Sampler

FIRST = {"num_samples": 10, "world_size": 4, "batch_size": 2}


def said(**changes) -> str:
    """Return Python's summary."""
    return Sampler(**{**FIRST, **changes}).facts["summary"]


def dealt(x) -> list[list[int]]:
    """Return the samples in each rank's tray, as they are drawn."""
    lanes = {}
    for title in x.box.locator("svg .x-mine > title").all_text_contents():
        rank, _, rest = title.removeprefix("rank ").partition(",")
        sample = rest.partition("sample ")[2].partition(",")[0]
        lanes.setdefault(int(rank), []).append(int(sample))
    return [lanes[rank] for rank in sorted(lanes)]


def drawn(x, epoch: int) -> list[int]:
    """Return the order of an epoch, as it is drawn."""
    cards = x.box.locator(f'svg [data-id^="{epoch} place "]')
    return [int(one.locator("text").text_content()) for one in cards.all()]


def flat(batches: list) -> list[list[int]]:
    """Return each rank's samples without their batches."""
    return [[i for batch in rank for i in batch] for rank in batches]


def test_the_page_shares_samples_out_as_python_does(explore):
    """The drawn trays and the summary are Python's; idle fields are hidden."""
    x = explore("book/ch5_ddp", "batches")
    assert x.summary == said()
    assert dealt(x) == flat(Sampler(**FIRST).facts["batches"])
    x.press("Next")
    assert x.summary == said(step=1) and x.field("step").input_value() == "1"
    now = x.box.locator("svg .x-mine[data-from] > title").all_text_contents()
    assert [one.split(": sample ")[1] for one in now] == [
        "6",
        "2",
        "4, again",
        "1, again",
    ]
    assert x.box.locator("svg .x-thread").count() == 4
    assert x.box.locator("svg .x-answer", has_text="the first 2 again").count()
    first = x.box.locator('svg [data-id="0 place 0"]')  # it is read in step 0
    frame = x.box.locator('svg .x-frame[data-id^="dealt"]:visible')
    before, look = frame.bounding_box(), first.locator("rect").get_attribute("style")
    first.click()
    assert x.summary == said(step=0)
    assert frame.bounding_box()["x"] < first.bounding_box()["x"] < before["x"]
    assert first.locator("rect").get_attribute("style") == look, "depth says no time"
    x.box.locator("svg .x-mine").last.click()  # the last rank's last sample
    assert x.summary == said(step=1)
    assert x.box.locator("td", has_text="(again)").count() == 2
    x.field("DistributedSampler: drop_last").focus()
    x.page.keyboard.press("Space")
    assert x.summary == said(step=1, drop_last=True)
    titles = x.box.locator("svg title").all_text_contents()
    assert sum(title.endswith("left out") for title in titles) == 2
    assert "left out: the last 2" in x.box.locator("svg").text_content()
    assert "drop_last=True" in x.box.locator(".x-code code").inner_text()
    x.field("DistributedSampler: shuffle").focus()
    x.page.keyboard.press("Space")
    for label in "seed", "epoch", "set_epoch is called":
        assert not x.field(label).is_visible()
    x.press("Reset")
    assert x.summary == said()
    x.fill("world size (ranks)", 17)
    assert x.error.endswith("world size (ranks): must be at most 16, not 17")
    assert x.summary == said(world_size=1)  # the state after the first digit, 1


def test_an_open_question_leaves_the_last_round_open(explore):
    """Ten on four ranks: the last two cards and their step say nothing of 12 or 10."""
    x = explore("book/ch5_ddp", "batches", asked=True)
    of = """all => all.filter(one => one.getClientRects().length
        && getComputedStyle(one).visibility === "visible"
    ).map(one => one.textContent)"""
    drawing = x.box.locator("svg text")
    assert "8 in all" in drawing.evaluate_all(of), "eight are dealt for certain"
    x.press("Next")
    words = drawing.evaluate_all(of)
    assert words.count("?") == 1, "a box for each rank would count the answer"
    assert "? in all" in words and "4 in all" not in words
    assert len(x.box.locator("svg .x-mine").evaluate_all(of)) == 8, "those of step 0"
    x.box.locator(".x-ask").get_by_role("button", name="12", exact=True).click()
    words = drawing.evaluate_all(of)
    assert "4 in all" in words and "?" not in " ".join(words)
    assert len(x.box.locator("svg .x-mine").evaluate_all(of)) == 12


def test_an_epoch_without_set_epoch_replays_the_first(explore):
    """Without set_epoch(), epoch 3 looks the same as epoch 0, and so do 4 and 5."""
    x = explore("book/ch5_ddp", "batches")
    first, order = dealt(x), drawn(x, 0)[:10]
    orders = Sampler(**FIRST).facts["orders"]
    assert [order, drawn(x, 1), drawn(x, 2)] == orders
    assert not x.box.locator("svg .x-wrong").count()
    x.box.locator('svg [data-id="1 place 0"]').click()  # the next epoch is gone to
    assert x.summary == said(epoch=1) and drawn(x, 1)[:10] == orders[1]
    x.fill("epoch", 3)
    assert dealt(x) != first and x.summary == said(epoch=3)
    x.field("set_epoch is called").focus()
    x.page.keyboard.press("Space")
    assert dealt(x) == first
    assert x.summary == said(epoch=3, set_epoch=False)
    assert "set_epoch(" not in x.box.locator(".x-code code").inner_text()
    assert drawn(x, 4) == drawn(x, 5) == order
    assert x.box.locator("svg rect.x-wrong").count() == 21  # both, and why


def test_what_was_measured_stays_while_a_reader_steps(explore):
    """A measurement stays while a reader steps, but any other change removes it."""
    x = explore("book/ch5_ddp", "batches")
    measured = Sampler(**FIRST).facts["batches"]
    measured[3][1] = [9]
    x.measure({"summary": "as a kernel says", "batches": measured})
    column = x.box.locator("table").first.locator("td:nth-child(3)")
    assert set(text[:8] for text in column.all_inner_texts()) == {"the same"}
    x.press("Next")
    assert column.all_inner_texts()[3] == "differs: 9"
    assert x.button("Run on live ranks").is_visible()
    x.fill("seed", 7)
    assert column.count() == 0
    assert x.box.locator(".x-measured").inner_text() == ""


def test_the_largest_order_fits_a_phone(explore):
    """199 samples on 16 ranks take no more space than ten: three steps are seen.

    Of the next epochs' orders, what fits is written, and the rest is counted.
    """
    x = explore("book/ch5_ddp", "batches")
    height = x.box.locator("svg").first.bounding_box()["height"]
    x.fill("samples in the data set", 199)
    x.fill("world size (ranks)", 16)
    facts = Sampler(num_samples=199, world_size=16, batch_size=2).facts
    assert dealt(x) == flat([rank[:3] for rank in facts["batches"]])
    assert x.box.locator('svg [data-id^="0 place "]').count() == 13 * 16
    later = drawn(x, 1)
    assert len(later) >= 5 and later == facts["orders"][1][: len(later)]
    rest = x.box.locator("svg").get_by_text(f"… {199 - len(later)} more", exact=True)
    assert rest.count() == 2
    for _ in range(4):
        x.press("Next")
    assert dealt(x) == flat([rank[3:6] for rank in facts["batches"]])
    box = x.box.locator("svg").first.bounding_box()
    assert box["height"] == height and box["x"] + box["width"] < 390
    inside = """rects => rects.every(one => {
        const { x, width, y, height } = one.getBBox();
        const all = one.ownerSVGElement.viewBox.baseVal;
        return x >= 0 && x + width <= all.width + 1 && y + height <= all.height; })"""
    assert x.box.locator("svg rect").evaluate_all(inside)
