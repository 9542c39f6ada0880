"""Buffers that ranks fill with their own samples, slot by slot, and DDP overwrites."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LOST = (
    "each rank writes its own samples into some slots of the buffer {}, and at the "
    "next forward DDP overwrites them with rank 0's: what the others wrote is lost. "
    "Gather all ranks' before they are written, or put broadcast_buffers=False."
)
MOST = 1 << 17  # slots


def filled(checks, where: str, name: str, tensor: torch.Tensor) -> None:
    """Warn if a buffer that differs is a queue or a memory, and no statistic.

    Right after DDP's broadcast all ranks had the same. A statistic then changes in
    every element; in a queue some slots are new, whole, and others are as they were.
    """
    model = checks.model
    if not isinstance(model, DistributedDataParallel) or not model.broadcast_buffers:
        return
    owner = type(model.get_submodule(name.rpartition(".")[0]))
    plain = type(tensor) in (torch.Tensor, nn.Buffer) and tensor.is_floating_point()
    if owner.__module__.startswith("torch.") or tensor.dim() < 2 or not plain:
        return
    if sum(tensor.shape) > MOST:
        return
    found = tensor.detach().cpu().double()
    own = [int((found != found.round()).any())]
    for dim in range(found.dim()):  # a number for each slice along it
        flat = found.movedim(dim, 0).flatten(1)
        factors = torch.arange(1, flat.shape[1] + 1, dtype=torch.float64).sqrt()
        own += (flat * factors).sum(1).view(torch.int64).tolist()
    table = torch.tensor(checks.exchange.integers(f"{where}: slots of {name}", own))
    if not table[:, 0].all():
        return  # counts
    equal = (table[:, 1:] == table[0, 1:]).all(0)
    kept = equal & (table[0, 1:] != 0)  # empty ones belong to a cache
    some = [
        bool(same.any()) for same in equal.split(list(found.shape)) if not same.all()
    ]
    if some.count(True) == 1 and len(some) == found.dim() and kept.any():
        checks.tell(LOST.format(name))
