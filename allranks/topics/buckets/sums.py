"""DDP's buckets: which gradients travel together, and how much backward hides.

Times come from a model: backward computes each layer in turn, beginning with the last
one. A ring all_reduce sends a bucket as soon as its last gradient has been computed and
the bucket before it has been sent.
"""

from collections.abc import Sequence
from typing import NamedTuple

from allranks.topics.buckets.models import Layer
from allranks.topics.data_parallel.sums import ring_bytes

MIB = 2**20
DEFAULT_CAPS = (1 * MIB, 25 * MIB)  # torch's: of the first bucket, of the others


class Bucket(NamedTuple):
    """A bucket: its bytes, its layers, and when it is ready, starts and ends, in s.

    ``pieces`` are its bytes of each layer, as (place in ``Step.layers``, bytes).
    """

    num_bytes: int
    layers: list[str]
    ready: float
    start: float
    end: float
    pieces: list[tuple[int, int]]


class Step(NamedTuple):
    """A step of DDP: when each layer's backward runs, and when each bucket is sent."""

    forward: float  # in seconds, like all times below
    backward: float
    layers: list[tuple[str, int, float, float]]  # name, bytes, start, end
    buckets: list[Bucket]

    @property
    def computed(self) -> float:
        """Return the seconds that a step takes without communication."""
        return self.forward + self.backward

    @property
    def sending(self) -> float:
        """Return the seconds of all_reduce, whether backward hides them or not."""
        return sum(bucket.end - bucket.start for bucket in self.buckets)

    @property
    def total(self) -> float:
        """Return the seconds until backward and the last all_reduce are done."""
        return max([self.computed] + [bucket.end for bucket in self.buckets])


def caps(bucket_cap_mb: float | None) -> tuple[int, int]:
    """Turn DDP's argument into bytes: of the first bucket, and of the others.

    The first bucket is smaller than the others only by default.

    Args:
        bucket_cap_mb: in MiB; None for DDP's default.
    Source: torch.nn.parallel.distributed, ``_BucketCapacityConfig``.

    >>> caps(None), caps(25)
    ((1048576, 26214400), (26214400, 26214400))
    """
    if bucket_cap_mb is None:
        return DEFAULT_CAPS
    return (int(bucket_cap_mb * MIB),) * 2


def assign(sizes: Sequence[int], first: int, other: int) -> list[list[int]]:
    """Put gradients into buckets, in the order in which they become ready.

    A bucket is closed when it holds its cap *or more*, so a large gradient is never
    cut.

    Args:
        sizes: of the gradients, in bytes.
        first: cap of the first bucket, in bytes.
        other: cap of all others.
    Returns:
        For each bucket the indices of its gradients.
    Source:
        torch.distributed._compute_bucket_assignment_by_size; a test compares with it.

    >>> assign([4, 4, 4, 100, 1], first=4, other=8)
    [[0], [1, 2], [3], [4]]
    """
    buckets, current, held, cap = [], [], 0, first
    for i, size in enumerate(sizes):
        current.append(i)
        held += size
        # The first cap is smaller, so that the network starts early in backward.
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
    """Lay out one step of DDP in time.

    It is not the first step, because there all gradients share one bucket.

    Args:
        layers: the model, in the order of its forward pass.
        batch_size: samples per rank.
        flops: floating-point operations per second, of each rank.
        world_size: ranks in the ring.
        alpha: seconds per message.
        bandwidth: bytes per second and link.
        cap_bytes: as ``caps`` returns them.
    Source:
        Li et al., PyTorch Distributed, VLDB 2020, section 3.2; for the time of a ring,
        ``topics.collectives.costs``.
    """
    forward = sum(layer.mflop for layer in layers) * 1e6 * batch_size / flops
    now, spans, sizes, owners = forward, [], [], []
    for i in reversed(range(len(layers))):
        name, numbers, mflop = layers[i]
        # Backward multiplies twice where forward multiplies once: for the gradient of
        # the input, and for those of the weights.
        end = now + 2e6 * mflop * batch_size / flops
        spans.append((name, 4 * sum(numbers), now, end))
        # float32; and within a layer, too, the last parameter is ready first.
        sizes += [4 * number for number in reversed(numbers)]
        owners += [len(spans) - 1] * len(numbers)
        now = end
    buckets, free = [], 0.0
    for members in assign(sizes, *cap_bytes):
        pieces = {}
        for i in members:
            pieces[owners[i]] = pieces.get(owners[i], 0) + sizes[i]
        num_bytes = sum(pieces.values())
        ready = spans[owners[members[-1]]][3]
        # Collectives of one group run one after another.
        start = max(ready, free)
        messages = 2 * (world_size - 1) * alpha
        free = start + messages + ring_bytes(world_size, num_bytes) / bandwidth
        names = list(dict.fromkeys(spans[i][0] for i in pieces))
        buckets.append(Bucket(num_bytes, names, ready, start, free, [*pieces.items()]))
    return Step(forward, now - forward, spans, buckets)
