"""Readers see which rank gets which sample, by keyboard, in a 390 px wide window."""

from allranks.explorables import Sampler

FIRST = {"num_samples": 10, "world_size": 4, "batch_size": 2}


def said(**changes) -> str:
    """Return Python's summary."""
    return Sampler(**{**FIRST, **changes}).facts["summary"]


def test_the_page_shares_samples_out_as_python_does(explore):
    """The summary is Python's, and fields without an effect are hidden."""
    x = explore("book/ch5_ddp", "batches")
    cells = x.box.locator(".x-cells .x-cell")
    assert x.summary == said()
    x.press("Next")
    assert x.summary == said(step=1) and x.field("step").input_value() == "1"
    assert x.box.locator(".x-cells .x-now").count() == 4  # 2, 6, and 1 and 4 again
    assert x.box.locator("td", has_text="(again)").count() == 2
    x.field("DistributedSampler: drop_last").focus()
    x.page.keyboard.press("Space")
    assert x.summary == said(step=1, drop_last=True)
    assert cells.filter(has_text="none").count() == 2
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


def test_an_epoch_without_set_epoch_replays_the_first(explore):
    """Without set_epoch(), epoch 3 looks the same as epoch 0."""
    x = explore("book/ch5_ddp", "batches")
    picture = x.box.locator(".x-cells")
    first = picture.inner_text()
    x.fill("epoch", 3)
    assert picture.inner_text() != first and x.summary == said(epoch=3)
    x.field("set_epoch is called").focus()
    x.page.keyboard.press("Space")
    assert picture.inner_text() == first
    assert x.summary == said(epoch=3, set_epoch=False)
    assert "set_epoch(" not in x.box.locator(".x-code code").inner_text()
    assert x.box.locator("td", has_text="(as in epoch 0)").count() == 2


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


def test_the_legend_names_every_frame(explore):
    """The legend also explains the double frame, which marks repeated samples."""
    x = explore("book/ch5_ddp", "batches")
    x.press("Next")
    assert x.box.locator(".x-cells .x-twice").count() == 2
    assert "Double frame" in x.box.inner_text()
