"""Packed sequences are as if alone, and every byte of a step weighs the same."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allranks import Ranks
from allranks.base.paths import ROOT
from scripts import ch9_packing as script
from tests import shown
from tests.bench import packing

LENGTHS = st.lists(st.integers(2, script.CONTEXT), min_size=1, max_size=60)


def texts(lengths, seed=0):
    """Make random texts."""
    dice = torch.Generator().manual_seed(seed)
    return [torch.randint(256, (n,), generator=dice) for n in lengths]


def network():
    """Make a small network in float64."""
    torch.manual_seed(1)
    return script.GPT(dim=16, layers=2, heads=2, context=script.CONTEXT).double()


@given(LENGTHS, st.integers(1, 9))
def test_buckets_and_rows_hold_each_text_once(lengths, size):
    """No row is longer than there is room, and no batch larger than asked for."""
    made = texts(lengths)
    batches, rows = script.bucket(made, size), script.fill(made)
    for found in batches, rows:
        assert sorted(id(t) for some in found for t in some) == sorted(map(id, made))
    assert max(map(len, batches)) <= size
    assert max(sum(map(len, row)) for row in rows) <= script.CONTEXT
    for some in script.in_batches(batches, 16):  # sorted inside a window
        flat = [len(t) for batch in some for t in batch]
        assert flat == sorted(flat)


def test_packed_logits_and_gradients_are_those_of_each_text_alone():
    """Only with the mask: without it, a text sees those before it."""
    net, some = network(), texts([3, 40, 2, 17, 80])
    with torch.no_grad():
        packed, unmasked = script.leaks(net, some)
    assert packed < 1e-12 and unmasked > 1e-3
    together = script.slope(net, [(some, 1.0)])
    alone = script.slope(net, [([text], 1.0) for text in some])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


def test_positions_begin_anew_in_each_text():
    """So the third text's first byte has place 0, and sees only itself."""
    x, mask, positions = script.pack_row(texts([2, 3, 2]))
    assert positions.tolist() == [0, 1, 0, 1, 2, 0, 1]
    assert mask.sum().item() == 3 + 6 + 3 and mask[5].tolist() == [False] * 5 + [
        True,
        False,
    ]
    assert x.shape == (1, 7)


RUN = """
import torch
from scripts import ch9_packing as script
from tests.test_ch9_packing import network, texts

every = [[texts(row, 10 * r + i) for i, row in enumerate(lengths[r])]
         for r in range(world_size)]
flat = [t for some in every for batch in some for t in batch]
script.means(network(), every[rank], flat)
"""


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_mean_of_bytes_is_one_process_on_all_of_them(world_size):
    """The two other means are off as soon as the micro-batches are unequal."""
    lengths = [[[3, 60], [5], [90, 4, 9]], [[7], [8, 8], [120]], [[2], [3], [50]]]
    with Ranks(world_size) as ranks:
        ranks.push({"lengths": lengths})
        for off in ranks.run(RUN, quiet=True):
            assert off["mean of bytes"] < 1e-12
            assert off["mean of micro-batches"] > 0.05
            assert (off["mean of ranks"] > 1e-3) == (world_size > 1)


def test_means_are_equal_if_all_micro_batches_are():
    """So nobody noticed as long as all texts were cut to one length."""
    with Ranks(2) as ranks:
        ranks.push({"lengths": [[[9, 9], [9, 9]]] * 2})
        for off in ranks.run(RUN, quiet=True):
            assert max(off.values()) < 1e-12


def test_the_script_says_all_of_it():
    lines = shown.lines("ch9_packing", 2)
    said = [line.partition("] ")[2] for line in lines]
    padding = [float(line.split()[-6]) for line in said[:3]]
    assert padding[0] > 0.4 > 0.1 > padding[1] > padding[2]
    off = [float(line.split()[-1]) for line in said[-3:]]
    assert off[0] > 0.1 > 0.01 > off[1] > off[2] == 0


def test_the_page_says_what_the_benchmark_found():
    """How many rows a pass has matters, and not the mask; buckets are as fast."""
    found = json.loads((ROOT / "book/_data/bench.json").read_text("utf8"))["packing"]
    buckets, packed = found["buckets"], found["packed"]
    assert packed["passes"] == buckets["passes"] < found["single"]["passes"]
    assert packed["ratio"] < 1.1 * buckets["ratio"]
    assert found["unmasked"]["ratio"] < 1.1 * packed["ratio"]
    assert found["single"]["ratio"] < 0.85 * packed["ratio"]


def test_packed_rows_in_one_batch_have_the_gradient_of_the_sentences_alone():
    """What the benchmark trains on is right, though rows are filled up."""
    texts = script.sentences(script.read_text()[0])[:24]
    torch.manual_seed(0)
    net = script.GPT(context=script.CONTEXT).double()

    def slope(batches):
        net.zero_grad()
        for x, wanted, mask, positions in batches:
            logits = net(x, mask, positions).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy
            loss(logits, wanted.flatten(), reduction="sum").backward()
        return torch.cat([p.grad.flatten() for p in net.parameters()])

    alone = slope((t[None, :-1], t[None, 1:], None, None) for t in texts)
    for passes in 1, 3:
        assert (slope(packing.packed(texts, passes)) - alone).abs().max() < 1e-9
    wrong = slope(packing.packed(texts, 3, masked=False))
    assert (wrong - alone).abs().max() > 1
