"""A step for each gradient as it comes changes no bit of the training."""

import re

import pytest
import torch
from torch import nn

from scripts import ch11_release as script


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_steps_in_backward_are_steps_after_it(kind):
    """Bit for bit, with one gradient at a time, and no more than the largest."""
    nets, flags = [], ["--words", "300", "--width", "32"]
    make_optimizer = getattr(torch.optim, kind)
    for early in False, True:
        net, _, x, y = script.make(script.parse_args(flags))
        params = [*net.parameters()]
        how = script.InBackward if early else lambda params, make: make(params)
        optimizer = how(params, make_optimizer)
        for _ in range(3):
            script.step(net, optimizer, x, y, lambda _: None)
        nets.append(params)
        assert all(p.grad is None for p in params)
    assert all(map(torch.equal, *nets))
    assert optimizer.most == max(p.nbytes for p in params)


def test_a_tied_weight_is_updated_once_when_both_gradients_are_there():
    first, last = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
    last.weight = first.weight
    net = nn.Sequential(first, last)
    right = first.weight.detach().clone().requires_grad_()
    (nn.functional.embedding(torch.arange(3), right) @ right.T).sum().backward()
    script.InBackward(net.parameters(), torch.optim.SGD)
    net(torch.arange(3)).sum().backward()
    torch.testing.assert_close(first.weight, right - 1e-3 * right.grad)


def test_the_peak_is_lower_by_gradients_if_it_is_in_the_step(capsys):
    """It is beside all gradients, and beside the head's alone if they go early."""
    script.main(script.parse_args(["--width", "128", "--tokens", "4"]))
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "all weights are equal, bit for bit"
    numbers = [
        [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]+", line)]
        for line in said[1:]
    ]
    (every, most), (before, after) = numbers
    assert most == 4 * 2048 * 128 and before > after >= before - every


def test_wrong_flags_are_refused_in_a_sentence():
    with pytest.raises(SystemExit, match=r"^--words 9: must be 256 to 65536, for"):
        script.parse_args(["--words", "9"])


def test_the_most_is_of_all_moments_and_not_of_the_last():
    """The last gradient is that of the first layer, which is the smallest."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 64))
    optimizer = script.InBackward(net.parameters(), torch.optim.SGD)
    net(torch.ones(2, 4)).sum().backward()
    assert optimizer.most == 4 * 64 * 4
