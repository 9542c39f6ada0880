"""Chapter 7's algorithms add up what torch adds up, and cost what the page derives."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks import Ranks
from allranks.base.paths import ROOT
from allranks.topics.collectives.costs import cost
from scripts import ch7_collectives as script
from tests.ranks import run_script

SIZES = [0, 1, 2, 5, 96, 1000]
RUN = """
from scripts import ch7_collectives as script

def results(run, n, dtype):
    x = ((torch.arange(n) * 7 + 3 * rank) % 11).to(dtype)
    wanted, real = x.clone(), torch.randn(n, dtype=torch.double)
    dist.all_reduce(wanted)
    script.LOG.clear()
    run(x)
    log = list(script.LOG)
    run(real)
    bits = [torch.empty_like(real) for _ in range(world_size)]
    dist.all_gather(bits, real)
    return torch.equal(x, wanted) and all(torch.equal(b, real) for b in bits), log

torch.manual_seed(rank)
results(getattr(script, name), n, getattr(torch, dtype))
"""


@pytest.fixture(scope="module", params=[1, 2, 3, 4, 5, 8], ids="W={}".format)
def ranks(request):
    """Yield live ranks."""
    with Ranks(request.param) as ranks:
        yield ranks


def run(ranks, name, n, dtype="float32"):
    """Return what every rank says about its result, and every rank's log."""
    ranks.push({"name": name, "n": n, "dtype": dtype})
    return zip(*ranks.run(RUN, quiet=True), strict=True)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("name", ["ring", "tree", "halving"])
def test_each_gives_torchs_bits_and_the_same_on_all_ranks(ranks, name, dtype):
    """For no number, fewer than ranks, and those that W does not divide, too."""
    if name == "halving" and ranks.world_size & (ranks.world_size - 1):
        return  # compare() leaves it out: see below
    for n in SIZES:
        good, _ = run(ranks, name, n, dtype)
        assert all(good), n


@pytest.mark.parametrize("name", ["ring", "tree"])
def test_the_logs_cost_what_the_model_says(ranks, name):
    """Replayed, they take the steps and the share of n of the pure schedule."""
    n = 40 * ranks.world_size
    _, logs = run(ranks, name, n)
    wanted = cost("all_reduce", name, ranks.world_size)
    assert script.replay(logs, lambda *_: 1) == wanted.steps
    share = script.replay(logs, lambda *message: message[2]) / (4 * n)
    assert share == pytest.approx(wanted.share)


def test_halving_sends_as_little_as_a_ring_in_as_few_steps_as_a_tree(ranks):
    """That is 2 log2 W steps, and 2 (W - 1) / W of n."""
    if (size := ranks.world_size) & (size - 1):
        return
    _, logs = run(ranks, "halving", 8 * size)
    assert script.replay(logs, lambda *_: 1) == 2 * (size.bit_length() - 1)
    for log in logs:
        out = sum(num for what, _, num in log if what == "isend")
        assert out == 2 * (size - 1) * 32


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_a_chain_of_messages_takes_the_sum_of_them(sizes):
    """And two ranks that exchange messages take the time of one at a time."""
    log = [[("isend", 1, size) for size in sizes], [("irecv", 0, s) for s in sizes]]
    assert script.replay(log, lambda *message: message[2]) == sum(sizes)
    both = [
        [(what, 1 - r, s) for s in sizes for what in ("isend", "irecv")] for r in (0, 1)
    ]
    assert script.replay(both, lambda *message: message[2]) == sum(sizes)


def test_wrong_bits_end_all_ranks_with_a_sentence():
    """One rank adds a number of its own: check() names the first that is wrong."""

    def ask():
        import torch
        import torch.distributed as dist

        from scripts import ch7_collectives as script

        def wrong(x):
            dist.all_reduce(x)
            x[0] += dist.get_rank() == 1

        try:
            script.check(wrong, dist.all_reduce, 8, 0, torch.device("cpu"))
        except SystemExit as end:
            return end.code

    with Ranks(2) as ranks:
        assert (
            ranks.run(ask, quiet=True) == ["rank 1 has wrong bits: that is a bug"] * 2
        )


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_the_script_counts_what_the_page_derives(world_size):
    """Each algorithm has its line; halving needs a power of two of ranks."""
    lines = run_script("ch7_collectives", world_size, "--kb", "12")[0]
    names = [line.split()[2].rstrip(":") for line in lines]
    assert names == ["ring", "tree", "halving"]
    if world_size == 3:
        assert lines[2].endswith("halving: needs a power of two of ranks")
    if world_size == 4:
        assert [line.split(";")[0].split(": ")[1] for line in lines] == [
            "6 steps, 1.5 n",
            "4 steps, 4 n",
            "4 steps, 1.5 n",
        ]


def tables():
    """Return the page's tables of chunks by rank: (row's head, cells) of each row."""
    page = (ROOT / "book" / "ch7_collectives.md").read_text("utf8")
    rows = re.findall(r"^\|([^|]+)\|((?:[ *\d]+\|){4})$", page, re.MULTILINE)
    return [
        (head.strip(), [c.strip() for c in rest.split("|")[:4]]) for head, rest in rows
    ]


def test_the_page_says_which_chunk_each_step_of_a_ring_brings():
    """Each step alone changes one number of four; it is complete from step 3 on."""

    def ask():
        import torch
        import torch.distributed as dist

        from scripts import ch7_collectives as script

        rank, found, whole = dist.get_rank(), [], torch.zeros(4)
        for step in range(6):
            x = torch.tensor([1.0, 10, 100, 1000]) * 2**rank
            before = x.clone()
            script.around(x, range(4), range(step, step + 1))
            found.append((x != before).nonzero().flatten().tolist())
            script.around(whole := torch.ones(4), range(4), range(step + 1))
            found[-1].append(whole[found[-1][0]].item() == 4)
        return found

    with Ranks(4) as ranks:
        by_rank = ranks.run(ask, quiet=True)
    rows = [cells for head, cells in tables() if re.match(r"\d, (adds|copies)$", head)]
    assert len(rows) == 6
    for step, cells in enumerate(rows):
        for rank, cell in enumerate(cells):
            chunk, complete = by_rank[rank][step]
            assert cell == (f"**{chunk}**" if complete else str(chunk))


def test_the_page_says_which_chunks_a_rank_keeps_while_halving():
    """What a rank adds to in each step, by the memory that it receives into."""

    def ask():
        import torch

        from scripts import ch7_collectives as script

        x, kept = torch.zeros(4), []
        move = script.move

        def watched(*messages):
            if len(kept) < 2:  # the tensor that stays is the one that isn't sent
                gone = messages[0][1]
                first = (gone.data_ptr() - x.data_ptr()) // 4
                away = set(range(first, first + len(gone)))
                kept.append(sorted((set(kept[-1]) if kept else set(range(4))) - away))
            return move(*messages)

        script.move = watched
        try:
            script.halving(x)
        finally:
            script.move = move
        return [" ".join(map(str, chunks)) for chunks in kept]

    with Ranks(4) as ranks:
        by_rank = ranks.run(ask, quiet=True)
    rows = [cells for head, cells in tables() if head.startswith("after the ")]
    assert rows == [list(cells) for cells in zip(*by_rank, strict=True)]
