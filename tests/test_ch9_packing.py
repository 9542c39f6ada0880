"""Each text is alone in a row of several, and a benchmark packs as the chapter does."""

import json

import torch

from allranks.base.paths import ROOT
from book._ext.runs import records
from scripts import ch9_packing as script
from tests.bench import packing

from ch9_padding import CONTEXT, sentences
from tasks import GPT, read_text


def texts(lengths, seed=0):
    """Make random texts."""
    dice = torch.Generator().manual_seed(seed)
    return [torch.randint(256, (n,), generator=dice) for n in lengths]


def network():
    """Make a small network in float64."""
    torch.manual_seed(1)
    return GPT(dim=16, layers=2, heads=2, context=CONTEXT).double()


def slope(net, batches):
    """Return the gradient of the losses' sum; a batch has x, what follows, and how."""
    net.zero_grad()
    for x, wanted, mask, positions in batches:
        logits = net(x, mask, positions).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy
        loss(logits, wanted.flatten(), reduction="sum").backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def each_alone(net, texts):
    """Return the gradient of the texts' losses, with no row of several."""
    return slope(net, [(t[None, :-1], t[None, 1:], None, None) for t in texts])


def test_packed_logits_and_gradients_are_those_of_each_text_alone():
    """Only with the mask: without it, a text sees those before it."""
    net, some = network(), texts([3, 40, 2, 17, 80])
    with torch.no_grad():
        packed, unmasked = script.leaks(net, some)
    assert packed < 1e-12 and unmasked > 1e-3
    x, mask, positions = script.pack_row(some)
    end = torch.tensor([-100])  # not counted
    wanted = torch.cat([part for t in some for part in (t[1:], end)])
    together = slope(net, [(x, wanted, mask, positions)])
    torch.testing.assert_close(together, each_alone(net, some), rtol=0, atol=1e-12)


def test_positions_begin_anew_in_each_text():
    """So the third text's first byte has place 0, and sees only itself."""
    x, mask, positions = script.pack_row(texts([2, 3, 2]))
    assert positions.tolist() == [0, 1, 0, 1, 2, 0, 1]
    assert mask.sum().item() == 3 + 6 + 3 and mask[5].tolist() == [False] * 5 + [
        True,
        False,
    ]
    assert x.shape == (1, 7)


def test_the_page_shows_that_only_the_mask_keeps_texts_apart():
    """The script finds rounding with it, and other logits without it."""
    command = records.Command("python scripts/ch9_packing.py")
    *_, line = records.read(ROOT / "book" / "_runs", command).splitlines()
    packed, unmasked = line.partition("logits by ")[2].split(", without the mask by ")
    assert float(packed) < 1e-12 and float(unmasked) > 0.1


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
    texts = sentences(read_text()[0])[:24]
    torch.manual_seed(0)
    net = GPT(context=CONTEXT).double()
    alone = each_alone(net, texts)
    for passes in 1, 3:
        assert (slope(net, packing.packed(texts, passes)) - alone).abs().max() < 1e-9
    wrong = slope(net, packing.packed(texts, 3, masked=False))
    assert (wrong - alone).abs().max() > 1
