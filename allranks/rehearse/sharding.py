"""Whether FSDP shards a model, so that each rank should have data of its own."""

import sys
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed import _composable_state

FSDP = "torch.distributed.fsdp"  # which takes a while to import, so only scripts do it


def sharded(module: Any) -> bool:
    """Tell whether FSDP shards a module over all ranks, each with data of its own."""
    fsdp = sys.modules.get(FSDP)
    if fsdp is None:
        return False
    if isinstance(module, fsdp.FullyShardedDataParallel):
        return dist.get_world_size(module.process_group) == dist.get_world_size()
    if not isinstance(module, fsdp.FSDPModule):
        return False
    meshes = [getattr(p, "device_mesh", None) for p in module.parameters()]
    return any(m.ndim == 1 and m.size() == dist.get_world_size() for m in meshes if m)


def units() -> list[nn.Module]:
    """Return the roots of all models that ``fully_shard`` was called on."""
    known = tuple(getattr(_composable_state, "_module_state_mapping", ()))
    known = known if FSDP in sys.modules else ()
    found = [m for m in known if isinstance(m, sys.modules[FSDP].FSDPModule)]
    inside = {id(part) for m in found for part in m.modules() if part is not m}
    return [module for module in found if id(module) not in inside]
