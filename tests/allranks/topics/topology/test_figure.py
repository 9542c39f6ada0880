"""What the explorable says about ranks is what torchrun does."""

import pytest

from allranks.topics import WhoIsWho


def test_launching_the_shown_cluster_gives_the_shown_ranks():
    """Two torchrun agents, of two processes and one, give the ranks it shows."""
    who = WhoIsWho(nodes=[2, 1], gpus_per_node=2, rank=0)
    who.runs += 1  # what the button does
    assert "error" not in who.measured, who.measured
    lines = who.measured["summary"].splitlines()
    for rank in range(3):
        who.rank = rank
        facts = who.facts
        said = f"node_rank {facts['node_rank']}, local_rank {facts['local_rank']},"
        assert any(said in line for line in lines if f"[rank {rank}/3]" in line), lines


def test_too_many_processes_are_not_launched():
    """The button answers with a sentence, and starts nothing."""
    who = WhoIsWho(nodes=[8, 8], gpus_per_node=8)
    who.runs += 1
    assert who.measured["error"].startswith("more than 8 processes")


@pytest.mark.parametrize("nodes", [[1], [2, 1], [3, 3, 3]])
def test_every_gpu_that_is_free_to_choose_leads_back_to_its_rank(nodes):
    """For every process, its coordinates lead back to its rank."""
    seen = set()
    for rank in range(sum(nodes)):
        facts = WhoIsWho.compute(nodes, max(nodes), rank, None)
        assert sum(nodes[: facts["node_rank"]]) + facts["local_rank"] == rank
        seen.add((facts["node_rank"], facts["gpu"]))
    assert len(seen) == sum(nodes)  # no two processes on one GPU


@pytest.mark.parametrize("visible", [None, "1", "", "-1", "9", "3,2", "0,1,2"])
def test_who_finds_a_gpu_is_counted_on_every_node(visible):
    """A process takes cuda:<local rank> among the visible GPUs; the rest stay idle."""
    nodes = [2, 3]
    facts = [WhoIsWho.compute(nodes, 4, rank, visible) for rank in range(5)]
    lost = [rank for rank, one in enumerate(facts) if one["gpu"] is None]
    assert all(one["without_gpu"] == lost for one in facts)
    visible_here = 2 * len(facts[0]["visible"])
    idle = visible_here - (5 - len(lost))
    kind = "GPUs" if visible is None else "visible GPUs"
    words = f"{idle} of {visible_here} {kind} stay idle" if idle else "no "
    assert words in facts[0]["description"]
    assert ("an error" in facts[0]["summary"]) == bool(lost)
