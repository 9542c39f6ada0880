"""What backs the quizzes of chapter 2."""

import warnings

import torch
from torch import nn

from allranks import vgpu
from allranks.topics.batches.sums import global_batch_size
from tests.quiz.proofs import law


def test_ch2_sum_or_mean():
    """PyTorch's own class on four virtual GPUs gives the undivided gradient."""
    with vgpu.plugged_in(4):
        torch.manual_seed(0)
        net, x = nn.Linear(3, 1), torch.randn(64, 3)
        net(x).square().mean().backward()
        alone = net.weight.grad.clone()
        copy = nn.Linear(3, 1)
        copy.load_state_dict(net.state_dict())
        copy.to("vgpu:0")
        nn.DataParallel(copy, [0, 1, 2, 3])(x.to("vgpu:0")).square().mean().backward()
        torch.testing.assert_close(copy.weight.grad.cpu(), alone)


def test_ch2_test_without_gpu():
    """One call gets the whole batch, device_ids is dropped, and the keys look right."""
    seen = []
    net = nn.Linear(2, 1)
    net.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    model = nn.DataParallel(net, device_ids=[0, 3])
    model(torch.ones(10, 2))
    assert seen == [10]
    assert model.device_ids == []
    assert set(model.state_dict()) == {"module.weight", "module.bias"}


def test_ch2_what_survives():
    """With PyTorch's own class, only what replica 0 writes in place survives."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.number = 0
            self.register_buffer("in_place", torch.zeros(1))
            self.register_buffer("assigned", torch.zeros(1))

        def forward(self, x):
            self.number += 1
            self.in_place.add_(1)
            self.assigned = self.assigned + 1
            return x * 2

    with vgpu.plugged_in(4):
        net = Net().to("vgpu:0")
        nn.DataParallel(net, [0, 1, 2, 3])(torch.ones(8, device="vgpu:0"))
        assert (net.number, net.in_place.item(), net.assigned.item()) == (0, 1, 0)


def test_ch2_more_gpus():
    """All outputs reach the first GPU, however many there are; or only their losses."""
    batch, classes = 12, 5000

    class Net(nn.Linear):
        def __init__(self, inside):
            super().__init__(2, classes)
            self.inside = inside

        def forward(self, x, y):
            output = super().forward(x)
            return nn.functional.cross_entropy(output, y) if self.inside else output

    def gathered(num_gpus, inside):
        net = Net(inside).to("vgpu:0")
        x = torch.ones(batch, 2, device="vgpu:0")
        y = torch.zeros(batch, dtype=torch.long, device="vgpu:0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns when it gathers scalars
            return nn.DataParallel(net, list(range(num_gpus)))(x, y).numel()

    with vgpu.plugged_in(3):
        assert gathered(2, False) == gathered(3, False) == batch * classes
        assert gathered(2, True) == 2


@law
def test_ch2_batch_for_ddp(batch, gpus):
    found = [b for b in range(1, batch + 1) if global_batch_size(b, gpus) == batch]
    return found[0]
