"""Who is who: what the explorable says is what torchrun does."""

import pytest

from allranks.explorables import WhoIsWho


def test_launching_the_shown_cluster_gives_the_shown_ranks():
    """Two torchrun agents, two and one processes: ranks and local ranks are those."""
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
    """Rank to coordinates and back, for every process."""
    seen = set()
    for rank in range(sum(nodes)):
        facts = WhoIsWho.compute(nodes, max(nodes), rank, None)
        assert sum(nodes[: facts["node_rank"]]) + facts["local_rank"] == rank
        seen.add((facts["node_rank"], facts["gpu"]))
    assert len(seen) == sum(nodes)  # no two processes on one GPU
