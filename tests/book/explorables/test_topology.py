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
    here, *each = x.box.locator(".x-code code").all_inner_texts()
    assert (
        each == facts["commands"]
        and here == f"On node 1 (others: their own number): {each[1]}"
    )
    assert x.box.locator(".x-code b").all_inner_texts() == ["2", "1"]
    x.press("Reset")
    assert x.field("CUDA_VISIBLE_DEVICES is set").is_checked() is False
    assert "4 ranks on 2 nodes" in x.summary


def test_a_process_without_a_gpu_is_drawn_and_named(explore):
    """CUDA_VISIBLE_DEVICES counts on every node, whichever rank is chosen."""
    x = explore("book/ch4_ranks", "topology")
    x.field("CUDA_VISIBLE_DEVICES is set").focus()
    x.page.keyboard.press("Space")
    x.fill(VISIBLE, "1")
    words = x.box.locator(".x-stage svg").first.text_content
    assert words().count("hidden") == 6 and words().count("no GPU") == 2
    for rank, place in ((3, "node 1, no GPU"), (0, "node 0, GPU 1")):
        x.press(f"rank {rank} local {rank % 2}, {place}")
        assert x.summary == WhoIsWho.compute([2, 2], 4, rank, "1")["summary"]
        assert words().count("hidden") == 6 and words().count("no GPU") == 2
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


def test_a_rank_is_counted_machine_by_machine(explore):
    """Braces count the processes before it; the sum below is dragged by keyboard."""
    x = explore("book/ch4_ranks", "topology")
    words = x.box.locator(".x-stage svg").first.text_content
    assert "2 before" in words() and "+ 0 local" in words()
    assert "= 2 before, on the nodes" not in words()  # a phone's sum is the braces'
    assert words().count("2 before") == 2 and "rank 2= 2 before + 0 local" in words()
    chosen = x.box.get_by_role("slider", name="the chosen rank")
    chosen.focus()
    x.page.keyboard.press("ArrowRight")
    assert "Rank 3 of 4 is local rank 1 on node 1" in x.summary
    assert words().count("+ 1 local") == 3  # above, below, and in the question
    assert "rank 3= 2 before + 1 local" in words()
    x.page.keyboard.press("Home")
    assert "Rank 0 of 4" in x.summary and words().count("0 before + 0 local") == 2
    assert chosen.get_attribute("aria-valuemax") == "3"
    x.drag(chosen, 2 * 24)
    assert "Rank 2 of 4" in x.summary


def test_a_process_more_takes_the_next_rank(explore):
    """Pressing its place adds it; the chosen process stays, and its rank moves up."""
    x = explore("book/ch4_ranks", "topology")

    def here() -> list[str]:
        """Return the ranks in the upper half of the drawing, on node 0."""
        cars = x.box.locator('[data-id^="rank"]').all()
        ends = sorted((one.bounding_box()["y"], one.text_content()[:6]) for one in cars)
        return sorted(name for y, name in ends if y < ends[0][0] + 20)

    assert here() == ["rank 0", "rank 1"]
    x.box.locator(".x-next").first.click()
    assert "5 ranks on 2 nodes: 3 of 8 GPUs stay idle (1 + 2)" in x.summary
    assert here() == ["rank 0", "rank 1", "rank 2"]
    assert "Rank 3 of 5 is local rank 0 on node 1" in x.summary
    assert x.box.locator(".x-code b").all_inner_texts() == ["2", "2"]


def test_the_sentence_changes_the_cluster(explore):
    """Machines and GPUs are its numbers; the chosen process stays if it can."""
    x = explore("book/ch4_ranks", "topology")
    machines = x.box.get_by_role("slider", name="Nodes (--nnodes), in the sentence")
    machines.focus()
    x.page.keyboard.press("ArrowRight")
    assert "6 ranks on 3 nodes" in x.summary and "Rank 2 of 6" in x.summary
    x.page.keyboard.press("Home")
    assert "2 ranks on 1 node" in x.summary and "Rank 1 of 2" in x.summary


def test_the_question_is_about_the_framed_process(explore):
    """Whichever is chosen: the frame, "rank ?" and the question name the same one."""
    x = explore("book/ch4_ranks", "topology", asked=True)
    for rank in (2, 0, 1, 3):
        if rank != 2:
            x.press(f"rank {rank} local {rank % 2}, node {rank // 2}, GPU {rank % 2}")
            x.press("Ask me about this one")
        question = f"the process on node {rank // 2} whose local rank is {rank % 2}?"
        assert question in x.box.locator(".x-ask").inner_text()
        framed = x.box.locator(".x-stage [data-id^=rank]:has(.x-chosen)")
        assert framed.get_attribute("data-id") == f"rank{rank}"
        guess = x.box.locator(".x-stage [data-id^=rank] .x-guess:visible")
        assert guess.count() == 1 and framed.locator(".x-guess:visible").count() == 1
        options = x.box.locator(".x-options button").all_inner_texts()
        assert len(options) == 4 and f"rank {rank}" in options
        x.press(f"rank {rank}")
        assert "Yes. " in x.box.locator(".x-ask").inner_text()


def test_no_two_ranks_have_one_hue_and_depth_says_nothing(explore):
    """From rank 8 on, all are gray; a chosen process is framed, and not deeper."""
    x = explore("book/ch4_ranks", "topology")
    x.fill("Processes per node (--nproc-per-node)", "8")
    x.press("rank 12 local 4, node 1, GPU 4")
    boxes = x.box.locator(".x-stage [data-id^=rank] .x-box")
    looks = boxes.evaluate_all("""all => all.map(one => [
        one.style.cssText, getComputedStyle(one).fill])""")
    hues = [style for style, _ in looks]
    assert len(set(hues[:8])) == 8 and set(hues[8:]) == {"--hue: var(--x-soft);"}
    assert len({fill for _, fill in looks[8:]}) == 1


def test_numbers_in_boxes_are_named_in_them_or_beside_their_machine(explore):
    """Where a box has no room for “rank 2, local 0”, its machine's name says which."""
    x = explore("book/ch4_ranks", "topology")
    drawing = x.box.locator("svg").first
    x.page.set_viewport_size({"width": 1280, "height": 800})
    for nodes, words in (3, "local 0"), (8, "node 1: rank, local"):
        x.fill("Nodes (--nnodes)", nodes)
        assert words in drawing.locator("text").all_text_contents()
    x.page.set_viewport_size({"width": 390, "height": 844})
    assert "node 1: ranks" in drawing.locator("text").all_text_contents()
    x.fill("Nodes (--nnodes)", 4)
    assert "rank 7" in drawing.locator("text").all_text_contents()
