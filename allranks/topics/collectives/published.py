"""All_reduces that others measured and published: bus bandwidths of nccl-tests.

All are in-place sums. A bus bandwidth in GB/s counts 10⁹ bytes, and sizes are those of
the source; Azure writes 1K for 1 KiB. The sources, each at the commit that was read:
``AZURE`` (Azure's guide to benchmarks, NCCL 2.18.5), ``COREWEAVE`` (CoreWeave's example
runs; its H100 jobs add up in the network's switches), ``EFA`` (measurements on Amazon's
p5.48xlarge).
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

GITHUB = "https://github.com"
AZURE = (
    f"{GITHUB}/Azure/AI-benchmarking-guide/tree/"
    "8fd0c6e1bd0f853ef8f0500a3640a7d80a2a92ef/Azure_Results"
)
COREWEAVE = (
    f"{GITHUB}/coreweave/nccl-tests/blob/"
    "cb86553328f8c9ed6f9d682971f5f9b17a926ab4/README.md"
)
EFA = (
    f"{GITHUB}/crazyguitar/aws-gpu-communication-benchmark/blob/"
    "fd167f97ab85009ff342f91e7117a80fd3741f39/data/nccl_all_reduce.csv"
)


class Published(NamedTuple):
    """A published measurement: bus GB/s by bytes, on so many GPUs."""

    num_gpus: int
    source: str
    bus: dict[int, float]


def doubling(first: int, *bus: float) -> dict[int, float]:
    """Return bandwidths by size, where each size is twice the one before.

    >>> doubling(1024, 0.04, 0.08)
    {1024: 0.04, 2048: 0.08}
    """
    return {first << n: gb_per_s for n, gb_per_s in enumerate(bus)}


KIB, MIB = 1 << 10, 1 << 20
# fmt: off
MEASURED = {
    "8 A100, NVLink 3": Published(8, AZURE, doubling(
        KIB, 0.04, 0.08, 0.17, 0.33, 0.67, 1.37, 2.70, 5.15, 10.11, 19.24, 36.22, 53.54,
        71.43, 89.99, 109.22, 132.77, 166.63, 174.18, 213.87, 221.58, 228.10, 230.22,
        230.48, 231.58,
    )),
    "8 H100, NVLink 4": Published(8, AZURE, doubling(
        KIB, 0.07, 0.14, 0.27, 0.53, 0.95, 1.71, 2.72, 5.40, 10.86, 21.35, 43.70, 81.93,
        128.73, 172.13, 234.45, 295.53, 361.78, 400.61, 423.38, 438.46, 466.35, 472.36,
        475.54, 478.87,
    )),
    "72 GB200, NVLink 5": Published(72, COREWEAVE, doubling(
        512 * MIB, 576.74, 724.06, 773.62, 835.32, 846.82,
    )),
    # 96, not 64 as the job's name says: bus / algorithm bandwidth is 2 · 95 / 96.
    "96 H100, InfiniBand": Published(96, COREWEAVE, doubling(
        512 * MIB, 356.60, 361.28, 379.40, 376.62, 385.56,
    )),
    "256 H100, EFA": Published(256, EFA, doubling(
        32 * MIB, 65.95, 82.86, 117.54, 139.49, 160.91, 220.88, 270.66, 299.83, 321.45,
    )),
}
# fmt: on


def bus(num_bytes: float, world_size: int, seconds: float) -> float:
    """Return the bus bandwidth of an all_reduce in GB/s.

    Args:
        num_bytes: of the tensor that each rank brings.
        world_size: number of ranks.
        seconds: that it took.
    Source:
        https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md

    >>> bus(1e9, 4, 0.5)
    3.0
    """
    return 2 * (world_size - 1) / world_size * num_bytes / seconds / 1e9


def seconds(num_bytes: float, world_size: int, bus_gb_per_s: float) -> float:
    """Return what an all_reduce took whose bus bandwidth is known.

    >>> seconds(1e9, 4, 3.0)
    0.5
    """
    return bus(num_bytes, world_size, bus_gb_per_s)


def half(line: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return where a line of (bytes, GB/s) reaches half of its most; None if at once.

    Between two points it is straight on logarithmic axes.

    >>> half([(1e3, 1.0), (1e5, 10.0), (1e6, 20.0)]), half([(1e3, 3.0), (1e5, 4.0)])
    ((100000.0, 10.0), None)
    """
    wanted = max(speed for _, speed in line) / 2
    for (n, slow), (more, fast) in itertools.pairwise(line):
        if slow < wanted <= fast:
            share = math.log(wanted / slow) / math.log(fast / slow)
            return n * (more / n) ** share, wanted
    return None
