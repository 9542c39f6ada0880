"""What wraps or shards a model, as far as the wrapper tells.

This is about DDP, FSDP2 and tensor parallelism: which rank holds which part, which
ranks share a batch, and whether a communication hook leaves anything but the mean. Join
and torch.compile are here, too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from allranks.guard.digests import DTensor, number
from allranks.guard.exchange import Exchange, GuardError

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # a torch without FSDP2
    FSDPModule = ()

Unit = tuple[str, nn.Module]  # name and module that ``fully_shard`` was called on
WRAPPERS = (nn.DataParallel, DistributedDataParallel)
MEAN = {  # those of torch's own hooks that leave the mean, perhaps rounded to 16 bits
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
    """Tell whether a module has been compiled by torch.compile."""
    own = getattr(module, "_compiled_call_impl", None) is not None
    return own or type(module).__name__ == "OptimizedModule"


def joining(model: nn.Module) -> bool:
    """Tell whether a model trains in a Join, where ranks make unequal steps."""
    configs = [getattr(m, "_join_config", None) for m in model.modules()]
    return any(getattr(config, "enable", False) for config in configs)


def units(model: nn.Module) -> list[Unit]:
    """List the modules that ``fully_shard`` was called on, with their names."""
    modules = model.named_modules()
    return [(n, m) for n, m in modules if FSDPModule and isinstance(m, FSDPModule)]


def wrapped(model: nn.Module) -> bool:
    """Tell whether DDP or FSDP2 exchanges its gradients, not the program by hand."""
    ddp = any(isinstance(m, DistributedDataParallel) for m in model.modules())
    return ddp or bool(units(model))


def ddp_group(model: nn.Module) -> "dist.ProcessGroup | None":
    """Return the group that DDP averages over, if it leaves out some of the ranks.

    A pipeline holds one DDP for each of its stages on a rank, all with the same group.
    """
    own = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
    ddp_groups = {m.process_group for m in own}
    if len(ddp_groups) != 1:
        return None
    group = ddp_groups.pop()
    return None if group.size() == dist.get_world_size() else group


def managed(unit: nn.Module) -> list[nn.Parameter]:
    """List the parameters that an FSDP2 unit gathers: those that are DTensors."""
    return [p for p in unit.parameters() if isinstance(p, DTensor)]


def groups(all_units: Sequence[Unit]) -> list[Any]:
    """List FSDP2's own records of its units, if this torch keeps them where others do.

    Args:
        all_units: the model's ``units``.
    """
    records = []
    for _, unit in all_units:
        state = unit._get_fsdp_state() if hasattr(unit, "_get_fsdp_state") else None
        # A newer torch has several for a unit, an older one has one.
        one = getattr(state, "_fsdp_param_group", None)
        records += getattr(state, "_fsdp_param_groups", None) or ([one] if one else [])
    return records


def sharding(parameter: torch.Tensor) -> tuple[int, int, int] | None:
    """Return (number of shards, own shard, dim); None if the tensor is cut twice."""
    if not isinstance(parameter, DTensor):
        return 1, 0, 0
    # Axes of the mesh along which it is cut: one for FSDP2, also with replicas (HSDP).
    cut = [i for i, p in enumerate(parameter.placements) if not p.is_replicate()]
    if not cut:
        return 1, 0, 0
    placement, mesh = parameter.placements[cut[0]], parameter.device_mesh
    if len(cut) > 1 or type(placement).__name__ != "Shard":
        return None
    return mesh.size(cut[0]), mesh.get_local_rank(cut[0]), placement.dim


class Unreduced:
    """Knows which gradients FSDP2 keeps elsewhere until it reduces them.

    Args:
        all_units: the model's ``units``.
    """

    def __init__(self, all_units: Sequence[Unit] = ()) -> None:
        self.records = {
            id(one.sharded_param): (group, one)
            for group in groups(all_units)
            for one in getattr(group, "fsdp_params", [])
        }

    def waits(self, parameter: torch.Tensor, whole: torch.Tensor) -> bool | None:
        """Tell whether a gradient waits to be reduced; None if this torch hides it.

        Until FSDP2 synchronizes it, it stays with the whole parameter, or beside it in
        mixed precision. Hybrid sharding may keep what only one axis has reduced.

        Args:
            parameter: the sharded one.
            whole: the same parameter, gathered.
        """
        if whole.grad is not None:
            return True
        group, one = self.records.get(id(parameter), (None, None))
        if not hasattr(one, "unsharded_accumulated_grad"):
            return None
        partial = getattr(group, "_partial_reduce_output", None)
        return one.unsharded_accumulated_grad is not None or partial is not None


def share(model: nn.Module, all_units: list[Unit], own: int) -> int:
    """Return a number for this rank's share of the data; 0 if it cannot be known.

    Ranks with equal numbers need the same batches, because together they hold one
    tensor-parallel model.

    Args:
        model: as it is trained.
        all_units: the model's ``units``.
        own: this rank's number.
    """
    parts = [p for p in model.parameters() if isinstance(p, DTensor)]
    if not parts:
        return number(f"rank {own}")
    if isinstance(model, WRAPPERS):
        return 0  # with DDP around DTensors only the process group can tell
    # Along how many axes of its mesh a parameter is cut, and how many axes there are.
    cut = max(len([x for x in p.placements if not x.is_replicate()]) for p in parts)
    axes = max(p.device_mesh.ndim for p in parts)
    if not all_units:  # tensor parallel alone
        # With a second axis it cannot be told whether that is one of the data.
        if axes > 1 and (
            cut > 1 or any(p.placements[-1].is_replicate() for p in parts)
        ):
            return 0
        meshes = {str(p.device_mesh.mesh.tolist()) for p in parts}
        return number(f"mesh {meshes.pop()}") if len(meshes) == 1 else 0
    # FSDP2 knows its own mesh, which has the axes of the data; others are tensor
    # parallel. Where it does not tell, a parameter that is cut once belongs to FSDP2.
    infos = [getattr(group, "mesh_info", None) for group in groups(all_units)]
    meshes = [getattr(info, "mesh", None) for info in infos]
    if None in meshes or any(getattr(info, "is_spmd_mesh", 0) for info in infos):
        return 0 if cut > 1 else number(f"rank {own}")
    inside = {id(p) for _, unit in all_units for p in managed(unit)}
    data_axes = max(m.ndim for m in meshes)
    if axes == data_axes and all(id(p) in inside for p in parts):
        return number(f"rank {own}")  # there is no axis but that of the data
    places = {str(m.get_coordinate()) for m in meshes}
    return number(f"data {places.pop()}") if len(places) == 1 else 0


def other_reduction(model: nn.Module) -> str:
    """Name what leaves gradients other than the ranks' mean; "" if nothing does."""
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            for hook, _ in getattr(module, "_comm_hooks", ()):
                if not _is_mean(hook):
                    return f"DDP's communication hook {hook.__qualname__}"
    # FSDP2 keeps its hooks and its own divisor in private records of each unit.
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
    """Raise if some ranks have a communication hook that others don't have.

    Args:
        exchange: between the ranks.
        where: what this check is called.
        why: what ``other_reduction`` returned on this rank.
        rows: a number for what it returned on each rank.
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
        return all(_is_mean(one) for one in inner if callable(one))
    return name in MEAN
