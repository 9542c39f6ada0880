"""What backs the quizzes of chapter 11."""

import math

import pytest
import torch
from torch import nn

from allranks.topics.memory import sums
from scripts import ch11_checkpoint, ch11_ledger, ch11_memory, ch11_release
from tests.quiz.proofs import law


@law
def test_ch11_kept(width, blocks, tokens):
    model = sums.Model("gpt", width, blocks, 4, 4, 4 * width, tokens)
    numbers = sum(one.numbers for one in sums.saved(model) if not one.exact)
    return 2 * numbers * blocks * tokens / 1e6


def test_ch11_peak():
    sizes = [f"--batch-size {n}" for n in (8, 4)]
    full, half = (
        ch11_memory.predict(ch11_memory.parse_args(flags.split())) for flags in sizes
    )
    for kind in "weights", "gradients", "optimizer":
        assert full[kind] == half[kind]
    assert full["activations"] == pytest.approx(2 * half["activations"], rel=1e-3)
    model = sums.Model()  # logits are in proportion, too
    logits = [sums.sizes(model, sums.Training(n)).logits for n in (8, 4)]
    assert logits[0] == 2 * logits[1]


class Squares(nn.Module):
    """A block of operations that keep their input, so the first keeps the block's."""

    def __init__(self, vectors: int) -> None:
        super().__init__()
        self.vectors = vectors

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.vectors):
            x = x.square()
        return x


class Most(ch11_ledger.Ledger):
    """A ledger that remembers its largest sum."""

    most = 0

    def count(self, storage: torch.UntypedStorage, change: int) -> None:
        super().count(storage, change)
        self.most = max(self.most, self.activations)


@law
def test_ch11_again(blocks, vectors):
    ledger, x = Most({}, None), torch.ones(1, requires_grad=True)
    with ledger.watch():
        for _ in range(blocks):
            x = ch11_checkpoint.ours(Squares(vectors), x)
        assert ledger.most == 4 * blocks  # after forward: the inputs
        x.backward()
    return ledger.most / 4  # bytes


def test_ch11_release():
    sizes = {"width": 16, "tokens": 8, "layers": 1, "words": 256}
    args = ch11_memory.parse_args([], **sizes)
    # AdamW has weight decay, and gives the same weights.
    usual, early = (ch11_release.train(args, early)[2] for early in (False, True))
    assert all(map(torch.equal, usual, early))
    net = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    before, moved = [p.detach().clone() for p in net.parameters()], []

    def sgd(params):
        return torch.optim.SGD(params, lr=0.1)

    ch11_release.InBackward(net.parameters(), sgd)

    def last(_):  # the first layer's gradient comes last
        pairs = zip(before, net.parameters(), strict=True)
        moved.extend(not torch.equal(a, b) for a, b in pairs)

    net[0].weight.register_hook(last)
    net(torch.ones(2, 4)).square().sum().backward()
    assert moved == [False, True, True]
    assert all(p.grad is None for p in net.parameters())


def test_ch11_eval():
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 3))
    kept = {}
    for mode in "train", "eval", "no_grad":
        ledger = ch11_ledger.Ledger({"all": [net]}, torch.optim.SGD(net.parameters()))
        net.train(mode == "train")
        with ledger.watch(), torch.set_grad_enabled(mode != "no_grad"):
            logits = net(torch.ones(5, 8))
            kept[mode] = ledger.activations
        del logits
    dropout = kept["train"] - kept["eval"]
    assert kept["no_grad"] == 0 < dropout < kept["eval"]
    assert kept["eval"] > 4 * math.prod((5, 8))
