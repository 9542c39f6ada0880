"""What DDP and FSDP2 have to send for a model: its parameters, and DDP's buckets."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

INDICES = "rebuilt_per_bucket_param_indices"  # as DDP logs them: "3 2, 1 0"


def of_ddp(model: nn.Module) -> dict[str, Any]:
    """Describe the gradients that DDP averages.

    Returns:
        Their bytes and number, the group, and each bucket's bytes, number of
        parameters, and names of the first and the last in it; DDP forms them anew after
        the first backward pass, and until then there are none. And the bytes of the
        buffers that it sends in each forward pass, with a sum of each.
    """
    names = {id(p): name for name, p in model.module.named_parameters()}
    sent = getattr(model, "modules_buffers", []) if model.broadcast_buffers else []
    parameters, _ = model._build_params_for_reducer()
    logged = model._get_ddp_logging_data().get(INDICES, "")
    buckets = []
    for text in filter(None, logged.split(",")):
        inside = [parameters[int(index)] for index in text.split()]
        ends = [names.get(id(p), "") for p in (inside[0], inside[-1])]
        buckets.append([sum(p.nbytes for p in inside), len(inside), *ends])
    return {
        "bytes": sum(p.nbytes for p in parameters),
        "parameters": len(parameters),
        "group": dist.get_process_group_ranks(model.process_group),
        "buckets": buckets,
        "buffers": sum(b.nbytes for b in sent),
        "sums": [total(getattr(b, "_inner", b)) for b in sent],
    }


def total(tensor: torch.Tensor) -> float:
    """Return the sum of a tensor's numbers, of complex ones with both parts."""
    tensor = tensor.detach().resolve_conj()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return float(tensor.double().sum())


def of_fsdp(root: nn.Module) -> dict[str, Any]:
    """Describe what FSDP2 gathers: bytes and number of parameters, and the group.

    "again" are the bytes that backward gathers, too, as forward has resharded them.
    """
    from torch.distributed.tensor import DTensor  # a script with FSDP2 has imported it

    from allranks.guard.wrappers import groups, units

    again = [
        one.sharded_param
        for group in groups(units(root))
        if getattr(group, "_reshard_after_forward", True)
        for one in getattr(group, "fsdp_params", [])
    ]
    found = [p for p in root.parameters() if isinstance(p, DTensor)]
    trained = [p for p in found if p.requires_grad]
    mesh = found[0].device_mesh if found else None
    return {
        "bytes": sum(p.numel() * p.element_size() for p in found),
        "trained": sum(p.numel() * p.element_size() for p in trained),
        "parameters": len(found),
        "again": sum(p.numel() * p.element_size() for p in again),
        "group": mesh.mesh.flatten().tolist() if mesh is not None else [],
    }
