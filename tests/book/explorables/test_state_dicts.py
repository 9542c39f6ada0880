"""State-dict keys can be explored by keyboard, in a 390 px wide window."""

import pytest

from allranks.topics import StateDictKeys

PAGE = "book/ch3_save_load"


def test_wrappers_are_chosen_and_the_answer_is_torchs(explore):
    """Each choice shows the next, and the summary and the programs are Python's."""
    x = explore(PAGE, "state_dicts")
    python = StateDictKeys(saved=["DDP"])
    assert x.summary == python.facts["summary"]
    assert not x.field("The writer at last in").is_visible()
    x.field("The writer then in").focus()
    x.page.keyboard.press("ArrowDown")  # DDP
    x.page.keyboard.press("ArrowDown")  # torch.compile
    python.saved = ["DDP", "compile"]
    assert x.summary == python.facts["summary"]
    shown = x.box.locator(".x-code code").all_inner_texts()
    for name in "save", "load", "repair", "save_plain", "load_plain":
        assert python.facts["programs"][name] in shown
    answer = x.box.locator(".x-report").inner_text()
    assert answer.strip() == python.facts["text"].strip()
    x.field("strict (of load_state_dict)").focus()
    x.page.keyboard.press("Space")
    assert "strict=False repaired nothing" in x.box.inner_text()
    assert x.box.evaluate("box => box.scrollWidth <= box.clientWidth")
    assert "undefined" not in x.box.inner_text()


def test_what_torch_refuses_is_refused_in_its_words(explore):
    """DDP around FSDP2 shows torch's error, and a wrapper can be removed again."""
    x = explore(PAGE, "state_dicts")
    x.field("The reader wraps in").focus()
    x.page.keyboard.press("End")  # FSDP2
    assert "fully_shard(net) wants keys like hidden.weight" in x.summary
    x.field("The reader then in").focus()
    x.page.keyboard.press("ArrowDown")  # DDP
    assert "torch refuses DDP(fully_shard(net)): NotImplementedError" in x.error
    x.press("Reset")
    x.field("The writer wraps in").focus()
    x.page.keyboard.press("Home")  # nothing
    assert "It loads." in x.summary
    assert not x.field("strict (of load_state_dict)").is_visible()


def keys(x, side: str) -> list[str]:
    """Return the keys of a side as they are drawn, part by part."""
    parts = x.box.locator(f'svg g[data-id^="{side} "]')
    rows = {}
    for part in parts.all():
        rows.setdefault(part.get_attribute("data-id").split()[1], []).append(part)
    return ["".join(p.text_content() for p in row) for row in rows.values()]


def test_wrappers_are_put_on_and_taken_off_on_the_drawing(explore):
    """The drawn keys are Python's, and a line joins those that are equal."""
    x = explore(PAGE, "state_dicts")
    x.press("The writer wraps in compile")
    facts = StateDictKeys(saved=["DDP", "compile"]).facts
    assert x.summary == facts["summary"]
    assert keys(x, "saved") == facts["saved"]["keys"]
    assert keys(x, "loaded") == facts["loaded"]["keys"]
    drawn = x.box.locator("svg")
    for words in "unexpected", "missing", "≠":
        assert words in drawn.text_content()
    wrong = drawn.locator("g:has(.x-wrong) > text").all_text_contents()
    assert wrong == ["_orig_mod.", "module."] * 2  # and nothing of the reader's
    x.press("The writer takes DDP off")
    assert keys(x, "saved") == ["_orig_mod.hidden.weight", "_orig_mod.head.weight"]
    x.press("The writer takes compile off", " ")
    assert "≠" not in drawn.text_content() and "=" in drawn.text_content()
    assert drawn.locator(".x-wrong").count() == 0
    for _ in range(2):
        x.press("The reader wraps in compile")
    assert "torch refuses torch.compile(torch.compile(net))" in x.error


def test_fsdp2_takes_the_place_of_ddp(explore):
    """Nobody builds fully_shard(DDP(net)), so no control offers it."""
    x = explore(PAGE, "state_dicts")
    x.press("The writer wraps in compile")
    x.press("The writer wraps in FSDP2")
    assert x.summary == StateDictKeys(saved=["FSDP2", "compile"]).facts["summary"]
    x.press("The writer wraps in DDP")
    assert x.summary == StateDictKeys(saved=["DDP", "compile"]).facts["summary"]
    inner = x.field("The writer then in").locator("option").all_text_contents()
    first = x.field("The writer wraps in").locator("option").all_text_contents()
    assert [one for one in first if one not in inner] == ["FSDP2 (fully_shard)"]


def test_a_repair_takes_the_prefix_off(explore):
    """On the drawing and in torch's answer; another wrapper needs another repair."""
    x = explore(PAGE, "state_dicts")
    drawn, answer = x.box.locator("svg"), x.box.locator(".x-report")
    assert drawn.locator(".x-wrong").count() == 2 and "Error" in answer.inner_text()
    x.press("Repair the file")
    assert drawn.locator(".x-wrong").count() == 0
    assert answer.inner_text() == "<All keys matched successfully>"
    assert x.summary == StateDictKeys(repaired=True).facts["summary"]
    assert "The answer" in x.box.locator(".x-ask").inner_text()  # as before
    x.press("Undo the repair")
    assert "Error" in answer.inner_text()
    x.press("Repair the file")
    x.press("The writer wraps in compile")
    assert drawn.locator(".x-wrong").count() == 4


def test_shards_have_the_colors_of_their_ranks(explore):
    """Whole tensors meet parts: the keys fit, and the values are marked."""
    x = explore(PAGE, "state_dicts")
    x.press("The writer takes DDP off")
    x.press("The writer wraps in FSDP2")
    drawn = x.box.locator("svg")
    parts = drawn.locator('rect[data-id^="saved value"]')
    styles = [part.get_attribute("style") for part in parts.all()]
    assert [f"--rank-{rank}," in styles[rank] for rank in (0, 1)] == [True, True]
    assert len(styles) == 4 and drawn.locator(".x-wrong").count() == 4
    assert drawn.locator("g:has(.x-wrong) > text.x-on-wrong").count() == 0


def test_one_mismatch_is_marked_at_a_time(explore):
    """Torch speaks of the keys first, and so does the drawing."""
    x = explore(PAGE, "state_dicts")
    x.press("The writer wraps in FSDP2")
    x.press("The writer wraps in compile")
    drawn = x.box.locator("svg")
    wrong = drawn.locator("g:has(> .x-wrong) > text").all_text_contents()
    assert wrong == ["_orig_mod."] * 2
    assert drawn.locator(".x-wrong").count() == 2


@pytest.mark.parametrize("width", [390, 1280])
def test_torchs_error_is_seen_whole_and_its_keys_are_marked(explore, width):
    """As in the drawing, in yellow; a repair takes the marks away."""
    x = explore(PAGE, "state_dicts")
    x.page.set_viewport_size({"width": width, "height": 800})
    report = x.box.locator(".x-report")
    assert report.evaluate("one => one.scrollHeight <= one.clientHeight + 1")
    marks = report.locator("mark").all_text_contents()
    keys = "hidden.weight", "head.weight"
    assert marks == [f'"{name}{key}"' for name in ("", "module.") for key in keys]
    x.press("Repair the file")
    assert report.locator("mark").count() == 0
