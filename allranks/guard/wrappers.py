"""What wraps or shards a model, as far as it says so.

DDP, FSDP2 and tensor parallelism: who holds which part, who shares a batch, and whether
a communication hook leaves something else than the mean. Also Join and torch.compile.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from allranks.guard.digests import DTensor, number
from allranks.guard.exchange import Exchange, GuardError

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # a torch without FSDP2
    FSDPModule = ()

WRAPPERS = (nn.DataParallel, DistributedDataParallel)
MEAN = {  # of torch's own hooks, those that leave the mean, if rounded to 16 bits
    "allreduce_hook",
    "fp16_compress_hook",
    "bf16_compress_hook",
    "_reducer_allreduce_and_upcast_hook",
}
WRAPS = ("fp16_compress_wrapper.", "bf16_compress_wrapper.")
JOIN = (
    "the model trains inside of Join, where a rank may end before the others: step() "
    "and epoch() check nothing there. Call check() after it."
)
NOT_THE_MEAN = (
    "{} makes gradients that need not be the mean of the ranks' own: the guard does "
    "not compare them with it. The other checks go on."
)


def bare(name: str) -> str:
    """Return a parameter's name without the wrappers that it begins with."""
    while name.startswith(("module.", "_orig_mod.")):
        name = name.partition(".")[2]
    return name


def is_compiled(module: nn.Module) -> bool:
    """Tell whether torch.compile has taken a module."""
    own = getattr(module, "_compiled_call_impl", None) is not None
    return own or type(module).__name__ == "OptimizedModule"


def joining(model: nn.Module) -> bool:
    """Tell whether a model trains in a Join, where ranks make unequal steps."""
    configs = [getattr(m, "_join_config", None) for m in model.modules()]
    return any(getattr(config, "enable", False) for config in configs)


def units(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """List the modules that ``fully_shard`` was called on, with their names."""
    modules = model.named_modules()
    return [(n, m) for n, m in modules if FSDPModule and isinstance(m, FSDPModule)]


def wrapped(model: nn.Module) -> bool:
    """Tell whether DDP or FSDP2 exchanges its gradients, not the program by hand."""
    ddp = any(isinstance(m, DistributedDataParallel) for m in model.modules())
    return ddp or bool(units(model))


def managed(unit: nn.Module) -> list[nn.Parameter]:
    """List the parameters that an FSDP2 unit gathers: those that are DTensors."""
    return [p for p in unit.parameters() if isinstance(p, DTensor)]


def groups(found: list[tuple[str, nn.Module]]) -> list[Any]:
    """List FSDP2's own records of its units, if they are where this torch looks.

    Args:
        found: the model's ``units``.
    """
    result = []
    for _, unit in found:
        state = unit._get_fsdp_state() if hasattr(unit, "_get_fsdp_state") else None
        one = getattr(state, "_fsdp_param_group", None)
        result += getattr(state, "_fsdp_param_groups", None) or ([one] if one else [])
    return result


def sharding(parameter: torch.Tensor) -> tuple[int, int, int] | None:
    """Return (number of shards, own shard, dim); None if it is sharded twice."""
    if not isinstance(parameter, DTensor):
        return 1, 0, 0
    cut = [i for i, p in enumerate(parameter.placements) if not p.is_replicate()]
    if not cut:
        return 1, 0, 0
    placement, mesh = parameter.placements[cut[0]], parameter.device_mesh
    if len(cut) > 1 or type(placement).__name__ != "Shard":
        return None
    return mesh.size(cut[0]), mesh.get_local_rank(cut[0]), placement.dim


class Unreduced:
    """Knows which gradients FSDP2 keeps out of sight until it reduces them.

    Args:
        found: the model's ``units``.
    """

    def __init__(self, found: list[tuple[str, nn.Module]]) -> None:
        self.records = {
            id(one.sharded_param): (group, one)
            for group in groups(found)
            for one in getattr(group, "fsdp_params", [])
        }

    def waits(self, parameter: torch.Tensor, whole: torch.Tensor) -> bool | None:
        """Tell whether a gradient waits to be reduced; None if this torch does not say.

        Without a synchronisation it stays with the whole parameter, and in mixed
        precision beside it; hybrid sharding may keep what one axis alone has reduced.
        """
        if whole.grad is not None:
            return True
        group, one = self.records.get(id(parameter), (None, None))
        if not hasattr(one, "unsharded_accumulated_grad"):
            return None
        partial = getattr(group, "_partial_reduce_output", None)
        return one.unsharded_accumulated_grad is not None or partial is not None


def share(model: nn.Module, found: list[tuple[str, nn.Module]], own: int) -> int:
    """Return a number for this rank's share of the data; 0 if it cannot be known.

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
    infos = [getattr(group, "mesh_info", None) for group in groups(found)]
    meshes = [getattr(info, "mesh", None) for info in infos]
    if None in meshes or any(getattr(info, "is_spmd_mesh", 0) for info in infos):
        return 0 if cut > 1 else number(f"rank {own}")
    inside = {id(p) for _, unit in found for p in managed(unit)}
    data = max(m.ndim for m in meshes)
    if axes == data and all(id(p) in inside for p in parts):
        return number(f"rank {own}")  # no axis but the data's
    places = {str(m.get_coordinate()) for m in meshes}
    return number(f"data {places.pop()}") if len(places) == 1 else 0


def strange(model: nn.Module) -> str:
    """Name what makes gradients something else than the ranks' mean; "" if nothing."""
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            for hook, _ in getattr(module, "_comm_hooks", ()):
                if not _is_mean(hook):
                    return f"DDP's communication hook {hook.__qualname__}"
    for group in groups(units(model)):
        hook = getattr(group, "_all_reduce_hook", None)
        if hook is not None:
            name = getattr(hook, "__qualname__", type(hook).__name__)
            return f"FSDP2's all_reduce hook {name}"
        scatter = getattr(group, "_reduce_scatter_comm", None)
        if scatter is not None and not type(scatter).__module__.startswith("torch."):
            return f"FSDP2's reduce_scatter {type(scatter).__qualname__}"
        factor = getattr(group, "gradient_divide_factor", None)
        if factor not in (None, group.mesh_info.mesh.size()):
            return f"FSDP2's gradient_divide_factor={factor:g}"
    return ""


def refuse_unlike(exchange: Exchange, where: str, why: str, rows: list[int]) -> None:
    """Raise if some ranks have a communication hook that others have not.

    Args:
        why: what ``strange`` says on this rank.
        rows: a number for it, of every rank.
    """
    if len(set(rows)) == 1:
        return
    texts = [text or "no hook" for text in exchange.texts(why)]
    raise GuardError(
        f"{where}: the ranks reduce gradients in different ways: "
        f"{exchange.by_ranks(texts, '; ')} ({exchange.suspects(texts)}). Register one "
        "hook, on every rank."
    )


def _is_mean(hook: Callable) -> bool:
    name = getattr(hook, "__qualname__", "")
    if not str(getattr(hook, "__module__", "")).startswith("torch.distributed."):
        return False
    if name.startswith(WRAPS):
        inner = [cell.cell_contents for cell in hook.__closure__ or ()]
        return all(_is_mean(found) for found in inner if callable(found))
    return name in MEAN
