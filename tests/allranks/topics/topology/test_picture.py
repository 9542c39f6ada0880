"""A cluster's picture shows each process on its GPU, and the idle GPUs."""

import doctest
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.topics.topology import picture
from allranks.topics.topology.picture import cluster
from tests.allranks.drawings import drawn


def test_the_examples_in_the_docstrings_hold():
    """The examples in the docstrings give what they say."""
    assert doctest.testmod(picture).attempted >= 1
    assert doctest.testmod(picture).failed == 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 9))
def test_a_cluster_shows_every_gpu_once(nodes, gpus):
    """Each GPU shows the one rank that uses it, or the word idle."""
    if max(nodes) > gpus:
        with pytest.raises(ValueError, match="each process needs its own"):
            cluster(nodes, gpus)
        return
    drawing = cluster(nodes, gpus)
    _, boxes = drawn(drawing)
    texts = [box[0] for box in boxes if box[0].startswith(("rank", "idle"))]
    assert len([t for t in texts if t == "idle"]) == gpus * len(nodes) - sum(nodes)
    ranks = [t for t in texts if t.startswith("rank")]
    locals_ = [local for size in nodes for local in range(size)]
    assert ranks == [f"rank {r} local {i}" for r, i in enumerate(locals_)]
    said = re.findall(r": rank ([0-9–]+), local", drawing.text)
    spans = [[int(n) for n in span.split("–")] for span in said]
    assert [i for s in spans for i in range(s[0], s[-1] + 1)] == list(range(sum(nodes)))
