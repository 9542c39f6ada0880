"""DDP's buckets: which gradients travel together, and what hides behind backward.

Times are a model: backward computes each layer in turn, last layer first; a bucket is
sent by a ring all_reduce when its last gradient is there and the one before is done.
"""

from collections.abc import Sequence
from typing import NamedTuple

from allranks.sums.data_parallel import ring_bytes
from allranks.sums.models import Layer

MIB = 2**20
DEFAULT_CAPS = (1 * MIB, 25 * MIB)  # torch's: of the first bucket, of the others


class Bucket(NamedTuple):
    """A bucket: bytes, the layers in it, and when it was ready, sent and there."""

    num_bytes: int
    layers: list[str]
    ready: float
    start: float
    end: float


class Step(NamedTuple):
    """A step of DDP: when which layer's backward ran and which bucket was sent."""

    forward: float
    backward: float  # seconds, like forward
    layers: list[tuple[str, int, float, float]]  # name, bytes, start, end
    buckets: list[Bucket]

    @property
    def computed(self) -> float:
        """Seconds of a step that never talks."""
        return self.forward + self.backward

    @property
    def sending(self) -> float:
        """Seconds of all_reduce, hidden or not."""
        return sum(bucket.end - bucket.start for bucket in self.buckets)

    @property
    def total(self) -> float:
        """Seconds until backward is done and the last bucket is there."""
        return max([self.computed] + [bucket.end for bucket in self.buckets])


def caps(bucket_cap_mb: float | None) -> tuple[int, int]:
    """Turn DDP's argument into bytes: of the first bucket, and of the others.

    Only the default has a smaller first bucket.

    Source: torch.nn.parallel.distributed, ``_BucketCapacityConfig``.

    >>> caps(None), caps(25)
    ((1048576, 26214400), (26214400, 26214400))
    """
    if bucket_cap_mb is None:
        return DEFAULT_CAPS
    return (int(bucket_cap_mb * MIB),) * 2


def assign(sizes: Sequence[int], first: int, other: int) -> list[list[int]]:
    """Put gradients into buckets, in the order in which they become ready.

    A bucket is closed when it holds its cap *or more*: a large gradient is never cut.

    Args:
        sizes: of the gradients, in bytes.
    Source:
        torch.distributed._compute_bucket_assignment_by_size, to which a test compares.

    >>> assign([4, 4, 4, 100, 1], first=4, other=8)
    [[0], [1, 2], [3], [4]]
    """
    buckets, current, held, cap = [], [], 0, first
    for i, size in enumerate(sizes):
        current.append(i)
        held += size
        if held >= cap:
            buckets.append(current)
            current, held, cap = [], 0, other
    return [*buckets, current] if current else buckets


def step(
    layers: Sequence[Layer],
    batch_size: int,
    flops: float,
    world_size: int,
    alpha: float,
    bandwidth: float,
    cap_bytes: tuple[int, int] = DEFAULT_CAPS,
) -> Step:
    """Lay out one step of DDP in time (not the first, in which all is one bucket).

    Args:
        batch_size: samples per rank.
        flops: floating-point operations per second, of each rank.
        alpha: seconds per message; bandwidth: bytes per second, per link.
        cap_bytes: as ``caps`` returns them.
    Source:
        Li et al., PyTorch Distributed, VLDB 2020, section 3.2; for the time of a ring,
        ``allranks.sums.costs``.
    """
    forward = sum(layer.mflop for layer in layers) * 1e6 * batch_size / flops
    now, spans, sizes, owners = forward, [], [], []
    for i in reversed(range(len(layers))):
        name, numbers, mflop = layers[i]
        end = now + 2e6 * mflop * batch_size / flops
        spans.append((name, 4 * sum(numbers), now, end))
        sizes += [4 * number for number in reversed(numbers)]
        owners += [len(spans) - 1] * len(numbers)
        now = end
    buckets, free = [], 0.0
    for members in assign(sizes, *cap_bytes):
        num_bytes = sum(sizes[i] for i in members)
        ready = spans[owners[members[-1]]][3]
        start = max(ready, free)
        messages = 2 * (world_size - 1) * alpha
        free = start + messages + ring_bytes(world_size, num_bytes) / bandwidth
        names = list(dict.fromkeys(spans[owners[i]][0] for i in members))
        buckets.append(Bucket(num_bytes, names, ready, start, free))
    return Step(forward, now - forward, spans, buckets)
