"""What a sharded model says: who holds which part, who shares a batch."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .digests import DTensor, number

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # a torch without FSDP2
    FSDPModule = ()

WRAPPERS = (nn.DataParallel, DistributedDataParallel)


def bare(name: str) -> str:
    """A parameter's name without the wrappers that it begins with."""
    while name.startswith(("module.", "_orig_mod.")):
        name = name.partition(".")[2]
    return name


def units(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that ``fully_shard`` was called on, by name."""
    modules = model.named_modules()
    return [(n, m) for n, m in modules if FSDPModule and isinstance(m, FSDPModule)]


def wrapped(model: nn.Module) -> bool:
    """Whether DDP or FSDP2 exchanges gradients of it, not the program by hand."""
    ddp = any(isinstance(m, DistributedDataParallel) for m in model.modules())
    return ddp or bool(units(model))


def managed(unit: nn.Module) -> list:
    """The parameters that an FSDP2 unit gathers: those that are DTensors."""
    return [p for p in unit.parameters() if isinstance(p, DTensor)]


def groups(found: list[tuple[str, nn.Module]]) -> list:
    """FSDP2's own books on its units; empty where this torch keeps them elsewhere."""
    result = []
    for _, unit in found:
        state = unit._get_fsdp_state() if hasattr(unit, "_get_fsdp_state") else None
        one = getattr(state, "_fsdp_param_group", None)
        result += getattr(state, "_fsdp_param_groups", None) or ([one] if one else [])
    return result


def sharding(parameter: torch.Tensor) -> tuple[int, int, int] | None:
    """(number of shards, own shard, dim) of a parameter; None if it is cut twice."""
    if not isinstance(parameter, DTensor):
        return 1, 0, 0
    cut = [i for i, p in enumerate(parameter.placements) if not p.is_replicate()]
    if not cut:
        return 1, 0, 0
    placement, mesh = parameter.placements[cut[0]], parameter.device_mesh
    if len(cut) > 1 or type(placement).__name__ != "Shard":
        return None
    return mesh.size(cut[0]), mesh.get_local_rank(cut[0]), placement.dim


class Kept:
    """Knows which gradients FSDP2 keeps out of sight until it reduces them."""

    def __init__(self, found: list[tuple[str, nn.Module]]):
        self.books = {
            id(one.sharded_param): (group, one)
            for group in groups(found)
            for one in getattr(group, "fsdp_params", [])
        }

    def hidden(self, parameter: torch.Tensor, whole: torch.Tensor) -> bool | None:
        """Whether a gradient waits to be reduced; None if this torch does not say.

        Without a synchronisation it stays with the whole parameter, in mixed precision
        beside it; hybrid sharding may keep what is reduced but in half of the ranks.
        """
        if whole.grad is not None:
            return True
        group, one = self.books.get(id(parameter), (None, None))
        if not hasattr(one, "unsharded_accumulated_grad"):
            return None
        partial = getattr(group, "_partial_reduce_output", None)
        return one.unsharded_accumulated_grad is not None or partial is not None


def share(model: nn.Module, found: list, own: int) -> int:
    """A number for this rank's share of the data; 0 if it cannot be known.

    Ranks with equal numbers need the same batches: those of one tensor-parallel model.

    Args:
        found: the model's ``units``.
        own: this rank's number.
    """
    parts = [p for p in model.parameters() if isinstance(p, DTensor)]
    if not parts:
        return number(f"rank {own}")
    if isinstance(model, WRAPPERS):
        return 0  # DDP around DTensors: its group says it, if it is not everyone
    cut = max(sum(not x.is_replicate() for x in p.placements) for p in parts)
    axes = max(p.device_mesh.ndim for p in parts)
    if not found:  # tensor parallel alone
        if axes > 1 and (
            cut > 1 or any(p.placements[-1].is_replicate() for p in parts)
        ):
            return 0
        meshes = {str(p.device_mesh.mesh.tolist()) for p in parts}
        return number(f"mesh {meshes.pop()}") if len(meshes) == 1 else 0
    books = [getattr(group, "mesh_info", None) for group in groups(found)]
    meshes = [getattr(info, "mesh", None) for info in books]
    if None in meshes or any(getattr(info, "is_spmd_mesh", 0) for info in books):
        return 0 if cut > 1 else number(f"rank {own}")
    inside = {id(p) for _, unit in found for p in managed(unit)}
    data = max(m.ndim for m in meshes)
    if axes == data and all(id(p) in inside for p in parts):
        return number(f"rank {own}")  # no axis but the data's
    places = {str(m.get_coordinate()) for m in meshes}
    return number(f"data {places.pop()}") if len(places) == 1 else 0
