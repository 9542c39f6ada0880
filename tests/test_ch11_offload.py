"""What is kept in the CPU's memory changes no bit of the gradients."""

import re

import pytest
import torch
from torch import nn

from allranks import vgpu
from scripts import ch11_offload as script

SIZES = ["--words 256", "--width 64 --layers 2 --words 512", "--width 96 --tokens 32"]


@pytest.mark.parametrize("flags", SIZES)
def test_sent_is_what_the_ledger_counts_and_gradients_are_equal(flags):
    """Each storage once, to the byte, and no weight; torch's hooks send more."""
    net, optimizer, x, y = script.make(script.parse_args(flags.split()))
    ledger = script.Ledger(script.parts_of(net), optimizer)
    right = script.gradients(net, x, y, ledger.watch(), ledger.note)
    offload = script.Offload(net.parameters())
    found = script.gradients(net, x, y, offload)
    assert all(map(torch.equal, found, right))
    assert offload.bytes == dict(ledger.rows)["loss"]["activations"]


def test_on_a_device_nothing_is_left_but_the_batch_and_a_loss():
    """A virtual GPU counts what it has: all activations are gone until backward."""
    with vgpu.plugged_in(1, memory="64 MiB"):
        net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to("vgpu")
        x = torch.randn(512, 64).to("vgpu")
        there = []
        for hooks in None, script.Offload(net.parameters()):
            before = torch.vgpu.memory_allocated()
            if hooks:
                with hooks:
                    loss = net(x).square().mean()
            else:
                loss = net(x).square().mean()
            there.append(torch.vgpu.memory_allocated() - before)
            loss.backward()
            net.zero_grad()
            assert not hooks or all(s.back is None for s in hooks.sent.values())
            del loss
    assert there[0] >= 3 * 512 * 64 * 4  # gelu's input, its output, the last output
    assert there[1] <= 512


def test_a_pointer_that_is_used_again_is_sent_again():
    """The first tensor is gone from the device, and its place is another's."""
    offload, losses = script.Offload([]), []
    weights = [torch.ones(1000, requires_grad=True) for _ in range(20)]
    with offload:
        for i, w in enumerate(weights):
            losses.append((w * torch.full((1000,), float(i))).sum())
    sum(losses).backward()
    assert [w.grad[0].item() for w in weights] == list(range(20))


def test_a_storage_that_has_changed_is_sent_again():
    """Two products keep the same storage, which has other numbers the second time."""
    a, b = (torch.ones(4, requires_grad=True) for _ in range(2))
    x, offload = torch.ones(4), script.Offload([])
    with offload:
        first = a * x
        x += 1
        second = b * x
    (first + second).sum().backward()
    assert a.grad.tolist() == [1] * 4 and b.grad.tolist() == [2] * 4
    assert offload.bytes == 32


def test_views_come_back_as_they_lay():
    """Transposed, shifted and shared by several users."""
    whole, offload = torch.arange(24.0).view(4, 6), script.Offload([])
    parts = whole.T[1:3], whole[:, ::2], whole
    weights = [torch.ones_like(p).requires_grad_() for p in parts]
    with offload:
        loss = sum((w * p).sum() for w, p in zip(weights, parts, strict=True))
    loss.backward()
    for w, p in zip(weights, parts, strict=True):
        assert torch.equal(w.grad, p)
    assert offload.bytes == whole.nbytes


@pytest.fixture(scope="module")
def said():
    """Return what the script prints."""
    args = script.parse_args(["--width", "64", "--words", "512"])
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script.job, "put", lines.append)
        script.main(args)
    return lines


def test_the_script_says_what_is_sent(said):
    numbers = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]+", said[1])]
    ours = re.search(r": ([\d,]+) bytes", said[2])[1]
    assert int(ours.replace(",", "")) == numbers[-1]
    theirs = re.search(r": ([\d,]+), also weights", said[3])[1]
    assert int(theirs.replace(",", "")) > numbers[-1]
    assert said[0] == "all gradients are equal, bit for bit"


@pytest.mark.parametrize("link", script.LINKS)
def test_at_the_least_width_a_layers_bytes_take_as_long_as_its_forward(link, said):
    """32 bytes and 24 operations per token and width; twice the width, half a price."""
    (line,) = (line for line in said if line.startswith(link))
    width = int(re.search(r"at least ([\d,]+)", line)[1].replace(",", ""))
    send, compute = 32 * width / script.LINKS[link], 24 * width**2 / script.FLOPS
    assert send == pytest.approx(compute, rel=1e-3)


def test_wrong_flags_are_refused_in_a_sentence():
    with pytest.raises(SystemExit, match=r"^--width 66: must be a multiple of 4$"):
        script.parse_args(["--width", "66"])
