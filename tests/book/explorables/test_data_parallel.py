"""DataParallel's step can be explored by keyboard, in a 390 px wide window."""

from allranks.topics import DataParallelForward

FIRST = {"batch_size": 32, "num_devices": 4}


def said(**changes) -> str:
    """Return Python's summary."""
    return DataParallelForward(**{**FIRST, **changes}).facts["summary"]


def test_a_reader_steps_through_and_changes_the_sizes(explore):
    """The summary and the tables are Python's, and the picture fits on a phone."""
    x = explore("book/ch2_data_parallel", "data_parallel")
    assert x.summary == said()
    for _ in range(2):
        x.press("Next")
    x.unfold()
    assert x.summary == said(stage=4) and "Stage gather: All outputs" in x.summary
    moved = x.box.locator("table").nth(1).locator("tbody tr")
    assert moved.all_inner_texts() == [
        f"device {i}\tdevice 0\t160 MB" for i in (1, 2, 3)
    ]
    x.field("loss inside of forward").focus()
    x.page.keyboard.press("Space")
    assert x.summary == said(stage=4, loss_inside=True) and moved.count() == 0
    x.fill("batch size (of all devices)", 5)
    assert x.summary == said(stage=4, loss_inside=True, batch_size=5)
    assert "device 3: 0 B, no share" in x.box.locator("svg text").all_text_contents()
    x.field("optimizer").focus()
    x.page.keyboard.press("S")
    assert "optimizer state\t–" in x.box.locator("table").first.inner_text()
    x.fill("devices", 9)
    assert x.error.endswith("devices: must be at most 8, not 9")
    assert x.page.evaluate("document.documentElement.scrollWidth") <= 390
    picture = "[...document.querySelectorAll('.x-scroll:has(svg)')]"
    assert x.page.evaluate(f"{picture}.every(p => p.scrollWidth <= p.clientWidth)")


def test_what_was_played_stands_beside_the_model(explore):
    """Measured values stand beside the model's, and words say if they are equal."""
    x = explore("book/ch2_data_parallel", "data_parallel")
    stages = {"replicate": {"held": [1208, 408, 408, 0], "moved": [[0, 1, 400]]}}
    x.measure({"summary": "as a kernel says", "stages": stages})
    memory, moved = (x.box.locator("table").nth(i) for i in (0, 1))
    last = memory.locator("tbody tr").last.inner_text().split("\t")[1:]
    same = ["1.21 GB, the same", "408 MB, the same", "408 MB, the same"]
    assert last == [*same, "0 B, differs"]
    column = moved.locator("td:nth-child(4)").all_inner_texts()
    assert column == ["400 MB, the same", "0 B, differs", "0 B, differs"]
    assert x.button("Run torch's own on virtual GPUs").is_visible()
