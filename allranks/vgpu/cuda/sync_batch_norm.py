"""The five kernels behind nn.SyncBatchNorm, which exist for CUDA alone.

They are registered for the CPU, where virtual GPUs compute. Shapes: an input (B, C, *)
with C channels, statistics (C,), and those of all W ranks (W, C).
"""

import torch

Tensor = torch.Tensor


def _sums(x: Tensor) -> list[int]:
    """Return the dims over which a channel's numbers lie."""
    return [dim for dim in range(x.dim()) if dim != 1]


def _each(values: Tensor, x: Tensor) -> Tensor:
    """Return a channel's values (C,) in a shape that fits (B, C, *)."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _precise(x: Tensor) -> Tensor:
    """Return the tensor in the type that CUDA computes in: float32 at least."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return each channel's mean and 1 / standard deviation on this rank."""
    variance, mean = torch.var_mean(_precise(x), _sums(x), correction=0)
    return mean, (variance + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    x: Tensor,
    means: Tensor,
    invstds: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Join the ranks' statistics, and update the running ones in place.

    Args:
        x: this rank's input.
        means: of all ranks (W, C).
        invstds: of all ranks (W, C).
        running_mean: (C,), or None.
        running_var: (C,), or None.
        momentum: of the running statistics.
        eps: that is in ``invstds``.
        counts: how many numbers per channel each rank had (W,).
    """
    shares = counts.to(means.dtype).view(-1, 1)  # (W, 1)
    total = shares.sum()
    mean = (means * shares).sum(0) / total
    within = invstds.pow(-2) - eps
    variance = ((within + (means - mean).square()) * shares).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        unbiased = variance * (total / (total - 1))
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return mean, (variance + eps).rsqrt()


def batch_norm_elemt(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    """Normalize, scale and shift each number."""
    out = (_precise(x) - _each(mean, x)) * _each(invstd, x)
    if weight is not None:
        out = out * _each(weight, x)
    if bias is not None:
        out = out + _each(bias, x)
    return out.to(x.dtype)


def batch_norm_backward_reduce(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what ranks have to add up: the sums of g and of g (x - mean).

    Args:
        grad: g, of the output.
        x: the input.
        mean: of all ranks.
        invstd: of all ranks.
        weight: (C,), or None.
        input_g: whether the input needs a gradient; all are made in any case.
        weight_g: whether the weight does.
        bias_g: whether the bias does.

    Returns:
        The two sums, and the gradients of weight and bias on this rank.
    """
    grad = _precise(grad)
    # Both are (C,), and nn.SyncBatchNorm adds them up over the ranks. The weight's
    # gradient stays this rank's own, because DDP averages it as it does all others.
    sum_dy = grad.sum(_sums(x))
    sum_dy_xmu = (grad * (_precise(x) - _each(mean, x))).sum(_sums(x))
    kind = sum_dy.dtype if weight is None else weight.dtype
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(kind), sum_dy.to(kind)


def batch_norm_backward_elemt(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """Return the gradient of the input.

    Args:
        grad: of the output.
        x: the input.
        mean: of all ranks.
        invstd: of all ranks.
        weight: (C,), or None.
        sum_dy: the sum of all ranks' gradients.
        sum_dy_xmu: that of gradients times (x - mean).
        count: how many numbers per channel each rank had (W,).
    """
    # dx = (dy - mean(dy) - (x - mean) * invstd² * mean(dy * (x - mean))) * invstd * w,
    # with means over the numbers of all ranks.
    total = count.sum().to(mean.dtype)
    out = _precise(grad) - _each(sum_dy / total, x)
    slope = invstd.square() * sum_dy_xmu / total
    out = out - (_precise(x) - _each(mean, x)) * _each(slope, x)
    scale = invstd if weight is None else invstd * weight
    return (out * _each(scale, x)).to(x.dtype)


KERNELS = (
    batch_norm_stats,
    batch_norm_gather_stats_with_counts,
    batch_norm_elemt,
    batch_norm_backward_reduce,
    batch_norm_backward_elemt,
)


def register() -> torch.library.Library:
    """Give the CPU these kernels, until the library that is returned is destroyed."""
    library = torch.library.Library("aten", "IMPL", "CPU")
    for kernel in KERNELS:
        library.impl(kernel.__name__, kernel)
    return library
