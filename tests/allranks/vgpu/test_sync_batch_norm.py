"""SyncBatchNorm on virtual GPUs: ranks with shards normalize as one with the union."""

import pytest
import torch

from tests.allranks.backends.gpus import gpu_ranks

SIZES = [3, 5]  # of the ranks' shards
TRAIN = """
layer = torch.nn.SyncBatchNorm(4, affine=affine, process_group=group)
layer = layer.to(gpu, dtype)
x = union.split(sizes)[rank].to(gpu, dtype).requires_grad_()
factors = torch.linspace(1, 2, len(union)).view(-1, 1, 1).split(sizes)[rank]
out = layer(x)
(out * factors.to(gpu, dtype)).square().sum().backward()
weight = layer.weight.grad if affine else None
made = out, x.grad, layer.running_mean, layer.running_var, weight
[None if t is None else t.detach().cpu() for t in made]
"""


@pytest.fixture(scope="module")
def two():
    """Yield two ranks on a GPU each."""
    with gpu_ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_two_shards_are_normalized_as_their_union(two, dtype, affine):
    """Outputs, gradients and running statistics are those of BatchNorm on one rank."""
    union = torch.randn(sum(SIZES), 4, 2, generator=torch.Generator().manual_seed(0))
    two.push({"union": union, "sizes": SIZES, "dtype": dtype, "affine": affine})
    first, second = two.run(TRAIN)
    layer = torch.nn.BatchNorm1d(4, affine=affine).double()
    x = union.to(dtype).double().requires_grad_()
    out = layer(x)
    factors = torch.linspace(1, 2, len(union)).view(-1, 1, 1).to(dtype)
    (out * factors).square().sum().backward()
    near = 1e-12 if dtype == torch.float64 else 0.01
    for place, whole in enumerate((out, x.grad)):
        parts = torch.cat([first[place], second[place]]).double()
        torch.testing.assert_close(parts, whole.detach(), rtol=near, atol=3 * near)
    for place, whole in ((2, layer.running_mean), (3, layer.running_var)):
        for made in first, second:
            close = {"rtol": near, "atol": near}
            torch.testing.assert_close(made[place].double(), whole, **close)
    if affine:
        total = (first[4] + second[4]).double()
        torch.testing.assert_close(total, layer.weight.grad, rtol=near, atol=3 * near)
