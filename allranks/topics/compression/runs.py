"""How many bytes real ranks hand to collectives, if a hook compresses gradients."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

REPEATS = 5  # of which the fastest counts


class Compressor:
    """Averages buckets, and counts the bytes that it hands to collectives."""

    def __init__(self, method: str, kept: int, approx_rank: int) -> None:
        self.method, self.kept, self.approx_rank = method, kept, approx_rank
        self.handed, self.seconds = 0, 0.0

    def mean(self, bucket: dist.GradBucket) -> torch.Tensor:
        """Return the mean of a bucket over the ranks, or what comes near to it."""
        gradient = bucket.buffer()
        if self.method == "powersgd":
            gradient = torch.stack(bucket.gradients())
        parts = self._timed(gradient)
        if self.method == "topk":
            places, values = (self._gather(part) for part in parts)
            total = torch.zeros_like(gradient)
            total.index_add_(0, torch.cat(places), torch.cat(values))
        elif self.method == "powersgd":
            p = torch.linalg.qr(self._reduce(*parts)).Q
            q = self._reduce((gradient.mT @ p).contiguous())
            total = (p @ q.mT).flatten()
        else:
            total = self._reduce(*parts).float()
        return total / dist.get_world_size()

    def encode(self, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what is sent for a gradient; of PowerSGD, the first half."""
        if self.method == "bf16":
            return (gradient.bfloat16(),)
        if self.method == "topk":
            places = gradient.abs().topk(self.kept).indices
            return places.int(), gradient[places]
        if self.method == "powersgd":
            same = torch.Generator().manual_seed(0)  # on all ranks
            shape = gradient.shape[-1], self.approx_rank
            return (gradient @ torch.randn(shape, generator=same),)
        return (gradient.clone(),)

    def _timed(self, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            parts = self.encode(gradient)
            times.append(time.perf_counter() - begin)
        self.seconds += min(times)
        return parts

    def _reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        self.handed += tensor.nbytes
        dist.all_reduce(tensor)
        return tensor

    def _gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.handed += tensor.nbytes
        found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(found, tensor)
        return found

    def average(self, weights: list[torch.Tensor]) -> None:
        """Average weights, as local steps do."""
        flat = torch.cat([weight.detach().flatten() for weight in weights])
        self._reduce(flat)


def hook(
    state: Compressor, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket at once, since only the bytes are of interest."""
    done = torch.futures.Future()
    done.set_result(state.mean(bucket))
    return done


class Squares(nn.Module):
    """A model of square matrices, of which it uses each once."""

    def __init__(self, matrices: int, width: int) -> None:
        super().__init__()
        each = (torch.randn(width, width) for _ in range(matrices))
        self.matrices = nn.ParameterList(each)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum((x @ matrix).square().sum() for matrix in self.matrices)


def count_bytes(
    method: str,
    matrices: int,
    width: int,
    kept: int,
    approx_rank: int,
    inner_steps: int,
) -> tuple[float, float]:
    """Run a step, and return the bytes handed over and the seconds of encoding.

    All ranks have to call it. Of local steps, it is an average's bytes, divided by the
    steps from one to the next.
    """
    torch.manual_seed(dist.get_rank())
    model, state = Squares(matrices, width), Compressor(method, kept, approx_rank)
    if method == "local":
        state.average(list(model.matrices))
        return state.handed / inner_steps, 0.0
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(state, hook)
    wrapped(torch.randn(width)).backward()
    return float(state.handed), state.seconds if method != "none" else 0.0
