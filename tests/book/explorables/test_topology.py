"""Ranks, nodes and GPUs can be explored by keyboard, in a 390 px wide window."""

from allranks.topics import WhoIsWho

VISIBLE = "CUDA_VISIBLE_DEVICES, on every node"


def test_fields_and_gpus_follow_each_other(explore):
    """Each number determines the others, a GPU is a button, errors change nothing."""
    x = explore("book/ch4_ranks", "topology")
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
    assert x.page.evaluate(focused) == gpu  # though the picture was drawn again


def test_unequal_nodes_and_hidden_gpus_say_what_python_says(explore):
    """The summary and the commands are Python's, for hidden GPUs and unequal nodes."""
    x = explore("book/ch4_ranks", "topology")
    x.fill("Processes per node (--nproc-per-node)", "2, 1")
    x.field("CUDA_VISIBLE_DEVICES is set").focus()
    x.page.keyboard.press("Space")
    x.fill(VISIBLE, "3,1")
    facts = WhoIsWho.compute([2, 1], 4, 2, "3,1")
    assert x.summary == facts["summary"]
    assert x.box.locator(".x-code code").all_inner_texts() == facts["commands"]
    x.press("Reset")
    assert x.field("CUDA_VISIBLE_DEVICES is set").is_checked() is False
    assert "4 ranks on 2 nodes" in x.summary


def test_a_process_without_a_gpu_is_drawn_and_named(explore):
    """CUDA_VISIBLE_DEVICES counts on every node, whichever rank is chosen."""
    x = explore("book/ch4_ranks", "topology")
    x.field("CUDA_VISIBLE_DEVICES is set").focus()
    x.page.keyboard.press("Space")
    x.fill(VISIBLE, "1")
    nodes = x.box.locator("svg").first
    seen = nodes.text_content().partition(" = ")[0][:-6]
    assert seen.count("hidden") == 6 and seen.count("no GPU") == 2
    for rank, place in ((3, "node 1, no GPU"), (0, "node 0, GPU 1")):
        x.press(f"rank {rank} local {rank % 2}, {place}")
        assert x.summary == WhoIsWho.compute([2, 2], 4, rank, "1")["summary"]
        assert nodes.text_content().startswith(seen)
        assert f"rank {rank} = {rank // 2 * 2} + local rank" in nodes.text_content()
    x.fill(VISIBLE, "GPU-abc")
    assert "write indices such as 2,1" in x.error


def test_a_number_on_the_way_to_another_changes_nothing_else(explore):
    """Typing 12 passes through 1, and typing "3, 1" through 3, without side effects."""
    x = explore("book/ch4_ranks", "topology")
    x.fill("Processes per node (--nproc-per-node)", "12")
    assert "Rank 2 of 24" in x.summary
    x.fill("Processes per node (--nproc-per-node)", "3, 1")
    assert "Rank 2 of 4" in x.summary
    assert x.field("GPUs in each machine").input_value() == "4"
    x.fill("Nodes (--nnodes)", "12")
    assert "Rank 2 of 14" in x.summary
    x.fill("Nodes (--nnodes)", "2")
    assert x.field("Processes per node (--nproc-per-node)").input_value() == "3, 1"


def test_the_edge_of_a_node_is_dragged(explore):
    """It gives the node processes, at most as many as it has GPUs."""
    x = explore("book/ch4_ranks", "topology")
    edge = x.box.get_by_role("slider", name="processes on node 0")
    edge.focus()
    x.page.keyboard.press("ArrowRight")
    assert "5 ranks on 2 nodes" in x.summary
    assert edge.get_attribute("aria-valuetext") == "3 processes"
    x.drag(edge, 300)
    assert "6 ranks on 2 nodes: 2 of 8 GPUs stay idle (0 + 2)" in x.summary
    x.page.keyboard.press("Home")
    assert "3 ranks on 2 nodes" in x.summary and not x.error
