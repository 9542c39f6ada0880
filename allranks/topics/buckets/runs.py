"""A step of DDP on real ranks, under torch.profiler, and what its trace says."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from allranks.topics.buckets import traces
from allranks.topics.buckets.models import Layer


class StandIn(nn.Module):
    """A layer with given parameters and arithmetic: one product with its weight.

    The first parameter is the weight, and the product has as many rows as it takes to
    reach ``mflop`` per sample. The other parameters are added up, which costs next to
    nothing.
    """

    def __init__(self, layer: Layer, batch_size: int) -> None:
        super().__init__()
        self.numbers = nn.ParameterList(
            nn.Parameter(torch.randn(number) * 0.01) for number in layer.numbers
        )
        used = layer.numbers[0] if layer.numbers else 0
        self.width = max(1, int(used**0.5))
        self.length = used // self.width * self.width
        rows = round(layer.mflop * 1e6 * batch_size / max(1, 2 * self.length))
        self.rows = torch.randn(rows, self.width)  # no buffer: DDP would broadcast it

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        """Turn one number into another, so that layers can follow each other."""
        scale = scale + sum(p.sum() for p in self.numbers) * 1e-6
        if not len(self.rows):
            return scale
        weight = self.numbers[0][: self.length].view(self.width, -1)
        return scale + (self.rows * scale @ weight).mean()


def record(
    layers: Sequence[Layer], batch_size: int, bucket_cap_mb: float | None
) -> tuple[str, list[int]]:
    """Train three steps and profile the fourth; all ranks have to call it.

    Args:
        layers: the model.
        batch_size: samples per rank.
        bucket_cap_mb: DDP's argument, in MiB; None for its default.
    Returns:
        The trace as exported, and the bytes of DDP's own buckets, in their order.
    """
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ddp = DistributedDataParallel(
        nn.Sequential(*(StandIn(layer, batch_size) for layer in layers)),
        bucket_cap_mb=bucket_cap_mb,
    )
    for _ in range(3):  # from the second step on, DDP has its final buckets
        ddp(torch.ones(1)).sum().backward()
    dist.barrier()
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as profile:
        ddp(torch.ones(1)).sum().backward()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profile.export_chrome_trace(str(path))
        text = path.read_text("utf8")
    sizes = ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    torch.set_num_threads(threads)
    return text, [int(size) for size in sizes.split(", ")]


def measure(
    layers: Sequence[Layer], batch_size: int, bucket_cap_mb: float | None
) -> dict:
    """Record a step, and return its lanes and the buckets; all ranks have to call it.

    Returns:
        ``trace``, as ``traces.lanes`` returns it, and ``bucket_bytes``.
    """
    text, sizes = record(layers, batch_size, bucket_cap_mb)
    return {"trace": traces.lanes(text), "bucket_bytes": sizes}
