"""Which models DDP and FSDP make parallel, and what they have to send for them."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _composable_state

from allranks.rehearse.records import Bucket, DdpModel, FsdpModel

FSDP = "torch.distributed.fsdp"  # which takes a while to import, so only scripts do it
INDICES = "rebuilt_per_bucket_param_indices"  # as DDP logs them: "3 2, 1 0"


def sharded(module: Any) -> bool:
    """Tell whether FSDP shards a module over all ranks, each with data of its own."""
    fsdp = sys.modules.get(FSDP)
    if fsdp is None:
        return False
    if isinstance(module, fsdp.FullyShardedDataParallel):
        return dist.get_world_size(module.process_group) == dist.get_world_size()
    if not isinstance(module, fsdp.FSDPModule):
        return False
    # In two dimensions, as (replicate, shard), parts of a mesh may share their data.
    meshes = [getattr(p, "device_mesh", None) for p in module.parameters()]
    return any(m.ndim == 1 and m.size() == dist.get_world_size() for m in meshes if m)


def fsdp_roots() -> list[nn.Module]:
    """Return the roots of all models that ``fully_shard`` was called on."""
    known = tuple(getattr(_composable_state, "_module_state_mapping", ()))
    known = known if FSDP in sys.modules else ()
    modules = [m for m in known if isinstance(m, sys.modules[FSDP].FSDPModule)]
    inside = {id(part) for m in modules for part in m.modules() if part is not m}
    return [module for module in modules if id(module) not in inside]


def describe_ddp(model: nn.Module) -> DdpModel:
    """Describe the gradients that DDP averages, and the buffers that it sends."""
    names = {id(p): name for name, p in model.module.named_parameters()}
    parameters, _ = model._build_params_for_reducer()
    logged = model._get_ddp_logging_data().get(INDICES, "")
    buckets = []
    for text in filter(None, logged.split(",")):
        inside = [parameters[int(index)] for index in text.split()]
        first, last = (names.get(id(p), "") for p in (inside[0], inside[-1]))
        num_bytes = sum(p.nbytes for p in inside)
        buckets.append(Bucket(num_bytes, len(inside), first, last))
    return DdpModel(
        num_bytes=sum(p.nbytes for p in parameters),
        num_parameters=len(parameters),
        group=dist.get_process_group_ranks(model.process_group),
        buckets=buckets,
        buffer_bytes=sum(b.nbytes for b in sent_buffers(model)),
    )


def sent_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the buffers that DDP sends in each forward pass."""
    return getattr(model, "modules_buffers", []) if model.broadcast_buffers else []


def total(tensor: torch.Tensor) -> float:
    """Return the sum of a tensor's numbers, of complex ones with both parts."""
    tensor = tensor.detach().resolve_conj()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return float(tensor.double().sum())


def describe_fsdp(root: nn.Module) -> FsdpModel:
    """Describe what FSDP2 gathers for a model."""
    from torch.distributed.tensor import DTensor  # a script with FSDP2 has imported it

    from allranks.guard.wrappers import groups, units

    # Forward reshards all but the root, by default, so backward gathers them again.
    regathered = [
        fsdp_parameter.sharded_param
        for group in groups(units(root))
        if getattr(group, "_reshard_after_forward", True)
        for fsdp_parameter in getattr(group, "fsdp_params", [])
    ]
    parameters = [p for p in root.parameters() if isinstance(p, DTensor)]
    mesh = parameters[0].device_mesh if parameters else None
    return FsdpModel(
        num_bytes=_unsharded_bytes(parameters),
        num_parameters=len(parameters),
        trained_bytes=_unsharded_bytes([p for p in parameters if p.requires_grad]),
        regathered_bytes=_unsharded_bytes(regathered),
        group=mesh.mesh.flatten().tolist() if mesh is not None else [],
    )


def _unsharded_bytes(parameters: list[torch.Tensor]) -> int:
    """Return the bytes of whole parameters; ``nbytes`` would be those of a shard."""
    return sum(p.numel() * p.element_size() for p in parameters)
