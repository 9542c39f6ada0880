"""The draft's picture shows the ranks where their lines say that they are."""

import pytest

from allranks.pictures import draft_machines

LINES = "\n".join(
    f"node{n}| [rank {r}/3] node_rank {n}, local_rank {i}, device cpu"
    for r, n, i in ((0, 0, 0), (1, 0, 1), (2, 1, 0))
)


def test_each_rank_stands_on_its_node():
    """The title counts them, and ranks numbered across nodes are refused."""
    text = draft_machines.placed(LINES).text
    assert "3 ranks on 2 nodes, numbered node by node" in text
    assert "rank 1 on node0; rank 2 on node1." in text
    with pytest.raises(ValueError, match="numbered node by node"):
        draft_machines.placed(LINES.replace("rank 0/", "rank 9/"))
