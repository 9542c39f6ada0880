"""Who trains on what: batches, steps and learning rates of W ranks.

Every function is pure, and sizes are counted in samples. Bad input raises the same
errors as in ``topology.sums``.
"""

import math

from allranks.base.units import whole


def global_batch_size(
    batch_size: int, world_size: int, num_accumulated: int = 1
) -> int:
    """Count the samples that contribute to one optimizer step.

    Args:
        batch_size: samples per rank and backward pass, as passed to DataLoader.
        world_size: number of ranks.
        num_accumulated: backward passes per optimizer step.
    Raises:
        TypeError: if an argument is no whole number.
        ValueError: if an argument is below 1.

    >>> global_batch_size(batch_size=32, world_size=8)
    256
    """
    batch_size = whole("batch_size", batch_size, low=1)
    world_size = whole("world_size", world_size, low=1)
    return batch_size * world_size * whole("num_accumulated", num_accumulated, low=1)


def samples_per_rank(num_samples: int, world_size: int, drop_last: bool = False) -> int:
    """Count the samples that each rank sees in an epoch, the same number on every rank.

    DistributedSampler repeats samples until every rank has equally many, or, with
    ``drop_last``, leaves out the samples that cannot be shared out evenly.

    Args:
        num_samples: samples in the data set.
        world_size: number of ranks.
        drop_last: leave samples out instead of repeating some.
    Raises:
        TypeError: if a number is no whole number.
        ValueError: if a number is below 1.

    >>> samples_per_rank(1437, world_size=2), samples_per_rank(1437, 2, drop_last=True)
    (719, 718)
    """
    num_samples = whole("num_samples", num_samples, low=1)
    world_size = whole("world_size", world_size, low=1)
    return num_samples // world_size if drop_last else -(-num_samples // world_size)


def steps_per_epoch(
    num_samples: int, batch_size: int, world_size: int = 1, drop_last: bool = False
) -> int:
    """Count the optimizer steps of one epoch, the same number on every rank.

    Args:
        num_samples: samples in the data set.
        batch_size: samples per rank and step.
        world_size: number of ranks.
        drop_last: leave out the samples that do not fill a whole batch, as sampler
            *and* DataLoader do when both are given ``drop_last=True``.
    Raises:
        TypeError: if a number is no whole number.
        ValueError: if a number is below 1.

    >>> [steps_per_epoch(1437, batch_size=32, world_size=w) for w in (1, 2, 4)]
    [45, 23, 12]
    """
    share = samples_per_rank(num_samples, world_size, drop_last)
    batch_size = whole("batch_size", batch_size, low=1)
    return share // batch_size if drop_last else -(-share // batch_size)


def scaled_lr(
    base_lr: float, base_batch: int, batch: int, rule: str = "linear"
) -> float:
    """Estimate a learning rate for another global batch from one that works.

    Args:
        base_lr: a learning rate that works with the global batch ``base_batch``.
        base_batch: that global batch, in samples.
        batch: the other global batch, in samples.
        rule: ``"linear"`` for SGD, ``"sqrt"`` for Adam and RMSprop.
    Raises:
        TypeError: if a batch is no whole number.
        ValueError: if a batch is below 1, base_lr is not positive, or there is no such
            rule.
    Source:
        linear: Goyal et al. 2017, arXiv:1706.02677 (with warm-up; up to a batch of
        8192 for ResNet-50 on ImageNet). sqrt: Malladi et al. 2022, arXiv:2205.10287
        (which also rescales Adam's betas and epsilon).

    >>> scaled_lr(0.1, base_batch=256, batch=8192)
    3.2
    >>> scaled_lr(0.001, base_batch=256, batch=1024, rule="sqrt")
    0.002
    """
    if not base_lr > 0:
        raise ValueError(f"base_lr must be positive, not {base_lr}")
    ratio = whole("batch", batch, low=1) / whole("base_batch", base_batch, low=1)
    if rule not in ("linear", "sqrt"):
        raise ValueError(f"rule must be 'linear' or 'sqrt', not {rule!r}")
    # With SGD, one step of k times the batch replaces k steps. Adam divides by the
    # gradient's noise, which only falls with the root of k.
    return base_lr * (ratio if rule == "linear" else math.sqrt(ratio))
