"""Who is who, by keyboard, at 390 px."""

from allranks.explorables import WhoIsWho


def test_fields_and_gpus_follow_each_other(explore):
    """Any number leads to the others; a GPU is a button; errors leave the state."""
    x = explore("book/ch4_ranks", "who_is_who")
    x.fill("rank", 3)
    assert x.field("node rank").input_value() == "1"
    assert x.field("local rank").input_value() == "1"
    x.fill("node rank", 5)
    assert "node_rank is 5, but the 2 nodes have node_rank 0 to 1" in x.error
    assert x.field("node rank").get_attribute("aria-invalid") == "true"
    assert "Rank 3 of 4" in x.summary
    gpu = "rank 0 local 0, node 0, GPU 0"
    x.press(gpu, " ")
    assert "Rank 0 of 4" in x.summary and not x.error
    assert x.button(gpu).get_attribute("aria-pressed") == "true"
    focused = "document.activeElement.getAttribute('aria-label')"
    assert x.page.evaluate(focused) == gpu  # though the picture was drawn anew


def test_unequal_nodes_and_hidden_gpus_say_what_python_says(explore):
    """The sentence below the form is Python's."""
    x = explore("book/ch4_ranks", "who_is_who")
    x.fill("Processes per node (--nproc-per-node)", "2, 1")
    x.field("CUDA_VISIBLE_DEVICES is set").focus()
    x.page.keyboard.press("Space")
    x.fill("CUDA_VISIBLE_DEVICES", "3,1")
    facts = WhoIsWho.compute([2, 1], 4, 2, "3,1")
    assert x.summary == facts["summary"]
    assert x.box.locator(".x-code code").all_inner_texts() == facts["commands"]
    x.press("Reset")
    assert x.field("CUDA_VISIBLE_DEVICES is set").is_checked() is False
    assert "4 ranks on 2 nodes" in x.summary
