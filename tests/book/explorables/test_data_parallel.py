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
    for _ in range(4):
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
    words = x.box.locator("svg text").all_text_contents()
    assert any(one.startswith("device 3: 0 B, no share") for one in words)
    x.field("optimizer").focus()
    x.page.keyboard.press("S")
    assert "optimizer state\t–" in x.box.locator("table").first.inner_text()
    x.fill("devices", 9)
    assert x.error.endswith("devices: must be at most 8, not 9")
    assert x.page.evaluate("document.documentElement.scrollWidth") <= 390
    picture = "[...document.querySelectorAll('.x-scroll:has(svg)')]"
    assert x.page.evaluate(f"{picture}.every(p => p.scrollWidth <= p.clientWidth)")


def test_the_film_is_a_slider_and_red_says_who_waits(explore):
    """By key and by mouse; gradients that were added up have the hues of all."""
    x = explore("book/ch2_data_parallel", "data_parallel")
    film = x.box.get_by_role("slider", name="stage, in the film")
    waits, added = (
        x.box.locator(f".x-stage {one}") for one in (".x-wait", '[data-id^="added "]')
    )
    assert waits.count() == 0
    x.fill("memory of a device (MB)", 4000)
    film.focus()
    x.page.keyboard.press("End")
    assert x.summary == said(stage=8, memory_mb=4000) and waits.count() == 3
    x.page.keyboard.press("ArrowLeft")
    assert x.summary == said(stage=7, memory_mb=4000) and (
        waits.count(),
        added.count(),
    ) == (0, 4)
    x.drag(film, -2 * x.box.locator(".x-stage svg").bounding_box()["width"] / 9)
    assert x.summary == said(stage=5, memory_mb=4000) and (
        waits.count(),
        added.count(),
    ) == (3, 0)


def test_what_the_arrows_carry_is_said(explore):
    """On a phone beside the stage's name, on a wide page above the bars."""
    x = explore("book/ch2_data_parallel", "data_parallel")
    words = x.box.locator("svg").first.text_content
    x.fill("memory of a device (MB)", 4000)
    film = x.box.get_by_role("slider", name="stage, in the film")
    film.focus()
    x.page.keyboard.press("End")
    assert "step: " not in words()  # in the last stage nothing moves
    for _ in range(2):
        x.page.keyboard.press("ArrowLeft")
    assert "backward: gradients of outputs, 160 MB each" in words()
    x.fill("batch size (of all devices)", 5)  # shares of 2, 2, 1
    assert "backward: gradients of outputs, 40 MB at most" in words()
    x.page.set_viewport_size({"width": 1280, "height": 800})
    assert "arrows: gradients of outputs, 40 MB at most" in words()


def test_what_is_gathered_flies_from_where_it_was(explore):
    """The outputs of device 2 come from its own bar, and not when a size changes."""
    moved = """box => box.querySelector('[data-id="gathered 2"]').getAnimations()
        .map(one => one.effect.getKeyframes()[0].transform)"""

    def far(transform: str) -> float:  # down, in px, of "translate(1px, 2px) scale(…)"
        return float(transform.split(",")[1].split("px")[0])

    x = explore(
        "book/ch2_data_parallel", "data_parallel", reduced_motion="no-preference"
    )
    for _ in range(3):
        x.press("Next")
    boxes = x.box.locator('[data-id="2 5"]').bounding_box()
    x.page.wait_for_timeout(200)  # a change that follows at once is not animated
    x.press("Next")
    [start] = x.box.evaluate(moved)
    x.page.wait_for_timeout(400)
    there = x.box.locator('[data-id="gathered 2"]').bounding_box()
    assert abs(far(start) - (boxes["y"] - there["y"])) < 2
    x.box.locator(".x-say").first.focus()
    x.page.keyboard.press("ArrowUp")
    assert not any(far(one) for one in x.box.evaluate(moved))


def test_what_was_played_stands_beside_the_model(explore):
    """Measured values stand beside the model's, and words say if they are equal."""
    x = explore("book/ch2_data_parallel", "data_parallel")
    stages = {"replicate": {"held": [1208, 408, 408, 0], "moved": [[0, 1, 400]]}}
    x.measure({"summary": "as a kernel says", "stages": stages})
    for _ in range(2):
        x.press("Next")
    x.unfold()
    memory, moved = (x.box.locator("table").nth(i) for i in (0, 1))
    last = memory.locator("tbody tr").last.inner_text().split("\t")[1:]
    same = ["1.21 GB, the same", "408 MB, the same", "408 MB, the same"]
    assert last == [*same, "0 B, differs"]
    column = moved.locator("td:nth-child(4)").all_inner_texts()
    assert column == ["400 MB, the same", "0 B, differs", "0 B, differs"]
    assert x.button("Run torch's own on virtual GPUs").is_visible()


def test_the_drawing_keeps_the_answer_until_it_is_given(explore):
    """No device's memory is drawn before; then the step begins at its start."""
    x = explore("book/ch2_data_parallel", "data_parallel", asked=True)
    bars = x.box.locator("svg .x-box:visible")
    words = x.box.locator("svg").first.text_content
    kinds = bars.count()
    assert words().count("then 8 samples: ?") == 4 and "at most" not in words()
    outlines = x.box.locator("svg .x-idle:not(.x-answer):not(.x-guess)")
    assert outlines.count() == 4 + 4 + 3  # inputs, activations; weights of the others
    x.press("Next")
    assert bars.count() == kinds and words().count("samples: ?") == 4
    x.press("gather")
    assert "Yes. There, device 0 needs 2.25 GB of 2 GB, and device 1" in (
        x.box.locator(".x-ask").inner_text()
    )
    assert x.summary == said(stage=0) and "samples: ?" not in words()
    assert bars.count() > kinds and "device 0: 1.2 GB, at most 2.89 GB" in words()


def test_a_step_ends_where_memory_runs_out(explore):
    """Play stops there; the stages after it are grey, and none is yellow."""
    x = explore(
        "book/ch2_data_parallel", "data_parallel", reduced_motion="no-preference"
    )
    words = x.box.locator("svg").first.text_content
    hues = x.box.locator("svg [style*='--hue: var(--rank-']:not([opacity])")
    over = x.box.locator("[data-id^='over ']")
    for _ in range(3):
        x.press("Next")
    x.press("Play")
    x.page.wait_for_function("document.querySelector('.x').innerText.includes('Pause')")
    x.button("Play").wait_for(timeout=10_000)
    assert x.field("stage").input_value() == "4" and over.count() == 1
    drawn = hues.count()
    x.press("Next")
    assert "loss: not reached" in words() and over.count() == 0
    assert "Stage loss: Not reached, because gather ran out of memory." in x.summary
    assert 0 < hues.count() < drawn  # those of the frames that were reached
    x.fill("memory of a device (MB)", 4000)
    assert "not reached" not in words() and hues.count() > drawn


def test_the_question_is_which_stage_runs_out_first(explore):
    """Its options are right for what fits, too, and for a stage seldom asked."""
    x = explore("book/ch2_data_parallel", "data_parallel", asked=True)
    offers = x.box.locator(".x-options button").all_inner_texts
    asked = ["parallel_apply", "gather", "backward"]
    assert offers() == [*asked, "Just show me"]
    for memory, options in (
        (4000, [*asked, "None: it fits."]),
        (1000, ["start", *asked]),
    ):
        x.fill("memory of a device (MB)", memory)
        x.press("Ask me about this one")
        assert offers() == [*options, "Just show me"]
