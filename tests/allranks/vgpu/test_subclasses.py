"""A parameter of the reader's own class stays one, wherever it is."""

import copy

import pytest
import torch
from torch import nn

from allranks import vgpu


class Named(nn.Parameter):
    """As from-scratch FSDPs write it: with a constructor and methods of its own."""

    def __new__(cls, data, name="w"):
        """Make it of data on any device."""
        return super().__new__(cls, data, requires_grad=True)

    def __init__(self, data, name="w"):
        self.label = name

    def twice(self):
        """Return a tensor, which is no parameter."""
        return self * 2


class Net(nn.Module):
    """Has one such parameter."""

    def __init__(self, device):
        super().__init__()
        self.w = Named(torch.ones(3, device=device), "mine")


@pytest.fixture(autouse=True)
def one():
    """Plug in a device that is called cuda."""
    with vgpu.plugged_in(1, "64 MiB", kind="cuda") as plugged:
        yield plugged


@pytest.mark.parametrize("made", [lambda: Net("cpu").cuda(), lambda: Net("cuda")])
def test_a_class_stays_on_a_gpu_and_comes_back(made):
    """Its methods, its attributes, its steps and copies are as on CUDA."""
    net = made()
    w = net.w
    assert isinstance(w, Named) and isinstance(w, nn.Parameter) and w.is_cuda
    assert (type(w).__name__, w.label, list(net.state_dict())) == (
        "Named",
        "mine",
        ["w"],
    )
    assert not isinstance(w.twice(), nn.Parameter)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.25)
    w.twice().sum().backward()
    optimizer.step()
    assert w.tolist() == [0.5] * 3 and net.w is w
    twin = copy.deepcopy(w)
    assert isinstance(twin, Named) and twin.is_cuda and twin.tolist() == w.tolist()
    net.cpu()
    assert type(net.w) is Named and net.w is w and w.label == "mine"
    assert w.device.type == "cpu" and w.twice().tolist() == [1.0] * 3
