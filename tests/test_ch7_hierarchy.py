"""A hierarchy gives the ring's sum, and sends less between the nodes."""

import pytest

from allranks import Ranks, RanksError
from scripts import ch7_hierarchy as script
from tests.ranks import run_script

RUN = """
from scripts import ch7_hierarchy as script
from ch7_collectives import LOG  # the script's own: not scripts.ch7_collectives

x = ((torch.arange(n) * 7 + 3 * rank) % 11).float()
wanted, real = x.clone(), torch.randn(n)
dist.all_reduce(wanted)
LOG.clear()
script.hierarchical(x, nodes)
log = list(LOG)
script.hierarchical(real, nodes)
bits = [torch.empty_like(real) for _ in range(world_size)]
dist.all_gather(bits, real)
torch.equal(x, wanted) and all(torch.equal(b, real) for b in bits), log
"""


@pytest.fixture(scope="module", params=[1, 2, 4, 6, 8], ids="W={}".format)
def ranks(request):
    """Yield live ranks."""
    with Ranks(request.param) as ranks:
        yield ranks


def test_it_adds_up_on_any_number_of_nodes(ranks):
    """Also for fewer numbers than ranks; with the steps and bytes of the page."""
    world_size = ranks.world_size
    for nodes in (n for n in range(1, world_size + 1) if world_size % n == 0):
        for n in 0, 1, 5, 7 * world_size:
            ranks.push({"n": n, "nodes": nodes})
            good, logs = zip(*ranks.run(RUN, quiet=True), strict=True)
            assert all(good), (nodes, n)
        size = world_size // nodes
        assert script.replay(logs, lambda *_: 1) == 2 * (size - 1) + 2 * (nodes - 1)
        for rank, log in enumerate(logs):
            across = sum(
                num_bytes
                for what, peer, num_bytes in log
                if what == "isend" and rank // size != peer // size
            )
            assert across == 2 * (nodes - 1) * 4 * 7  # 2 (N - 1) / (N L) of n


def test_the_script_says_what_crosses_between_nodes():
    lines = run_script("ch7_hierarchy", 4, "--kb", "16")[0]
    assert [line.partition("] ")[2] for line in lines] == [
        "ring: 6 steps, 1.5 n leave a node, 13.5 n / B in all",
        "hierarchical: 4 steps, 1 n leave a node, 5.5 n / B in all",
    ]


def test_nodes_must_divide_the_ranks():
    with pytest.raises(RanksError, match="--nodes 3: must divide the 4 ranks"):
        run_script("ch7_hierarchy", 4, "--nodes", "3")
