"""The guard copies once from each device, and digests don't depend on the device."""

import pytest
import torch

from allranks import Ranks, vgpu
from allranks.guard.digests import digest, digest_all, sketch

GOLDEN = [  # of the tensors below; they were recorded once and must never change
    -855254000400537521,
    -257452715180664745,
    8334153023907656925,
    -3289507471845655451,
    0,
    2764129390520626420,
    3704866521549785779,
    740672957907451615,
    5432599702136045461,
]
TOGETHER = -498267990701727394  # of the first seven


def tensors():
    """Return tensors of all sorts; the last two cannot be on a virtual GPU."""
    torch.manual_seed(0)
    first = [
        torch.randn(3, 2049),
        torch.randn(100_003).bfloat16(),
        torch.arange(70001, dtype=torch.int8),
    ]
    pairs = torch.randn(5, 7, dtype=torch.complex64)
    first += [torch.ones(9) > 0, torch.randn(0, 3), torch.tensor(3.5)]
    first += [torch.randn(4, 4).t(), pairs, torch.eye(5).to_sparse()]
    return first


def test_a_digest_is_the_same_on_every_device_and_as_it_always_was():
    """Ranks can be compared on different devices, or with an older guard."""
    found = tensors()
    assert [int(digest(t)) for t in found] == GOLDEN
    with vgpu.plugged_in(2):
        away = [t.to("vgpu:1") for t in found[:7]]
        assert [int(digest(t)) for t in away] == GOLDEN[:7]
        assert digest_all(away) == digest_all(found[:7]) == TOGETHER
        mixed = [*away[:3], torch.ones(9).to("vgpu:0"), *found[3:]]
        vgpu.clear_events()
        digest_all(mixed)
        sources = [event.source for event in vgpu.events() if event.target == "cpu"]
        assert sorted(sources) == ["vgpu:0", "vgpu:1"]
        x = torch.randn(2, 70_000)
        torch.testing.assert_close(sketch(x.to("vgpu:0")).cpu(), sketch(x))


def copies(case: str):
    """Train on two virtual GPUs of this rank; count the copies to the CPU by check."""
    from collections import Counter

    import torch
    import torch.distributed as dist
    from torch import nn

    from allranks import vgpu
    from allranks.guard import Guard, digests

    torch.manual_seed(0)
    digests._cache.clear()  # its tensors are on virtual GPUs that are unplugged by now
    with vgpu.plugged_in(2):
        net = nn.Sequential(*[nn.Linear(6, 6) for _ in range(6)], nn.BatchNorm1d(6))
        net[:3].to("vgpu:0")
        net[3:].to("vgpu:1")
        if case == "one device":
            net.to("vgpu:0")
        options = {"lr": torch.tensor(0.1)} if case == "tensor settings" else {}
        optimizer = torch.optim.Adam(net.parameters(), foreach=False, **options)
        x = torch.randn(4, 6) + dist.get_rank()
        found = []
        with Guard(net, optimizer, every=1, skip=("buffers",)) as watch:
            for step in range(3):
                optimizer.zero_grad()
                y = net[:3](x.to(net[0].weight.device))
                net[3:](y.to(net[3].weight.device)).square().mean().backward()
                for p in net.parameters():
                    mean = p.grad.cpu()
                    dist.all_reduce(mean)
                    p.grad.copy_(mean / 2)
                if case == "wrong" and step == 2 and dist.get_rank():
                    net[4].weight.data[2, 3] += 1
                vgpu.clear_events()
                said = ""
                try:
                    watch.step()
                except RuntimeError as error:
                    said = str(error)
                copied = [e.source for e in vgpu.events() if e.target == "cpu"]
                found.append((dict(Counter(copied)), said))
                optimizer.step()
        return found


@pytest.fixture(scope="module")
def ranks():
    """Yield two ranks for the whole module."""
    with Ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize("case", ["two devices", "one device", "tensor settings"])
def test_a_check_copies_once_from_each_device(ranks, case):
    """Weights, state, gradients and sketches leave each device in one copy."""
    both = {"vgpu:0": 1, "vgpu:1": 1}
    once = {"vgpu:0": 1} if case == "one device" else both
    for found in ranks.run(copies, case, timeout=60):
        assert found == [(once, "")] * 3


def test_what_is_wrong_on_a_device_is_found_there(ranks):
    """The search for the element may copy more, but it ends."""
    first, second = ranks.run(copies, "wrong", timeout=60)
    assert first[2][1] == second[2][1]
    assert (
        "parameter 4.weight is not the same on all ranks: element [2, 3]" in first[2][1]
    )
