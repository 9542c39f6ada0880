"""Communication hooks: what they leave in .grad need not be the mean."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .sharded import groups, units

MEAN = {  # of torch's own, those that leave the mean, if rounded to 16 bits
    "allreduce_hook",
    "fp16_compress_hook",
    "bf16_compress_hook",
    "_reducer_allreduce_and_upcast_hook",
}
WRAPS = ("fp16_compress_wrapper.", "bf16_compress_wrapper.")


def strange(model: nn.Module) -> str:
    """Name what makes gradients something else than the ranks' mean; or ""."""
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


def joining(model: nn.Module) -> bool:
    """Whether a model trains inside of Join, where ranks make unequal steps."""
    configs = [getattr(m, "_join_config", None) for m in model.modules()]
    return any(getattr(config, "enable", False) for config in configs)


def _is_mean(hook) -> bool:
    name = getattr(hook, "__qualname__", "")
    if not str(getattr(hook, "__module__", "")).startswith("torch.distributed."):
        return False
    if name.startswith(WRAPS):
        inner = [cell.cell_contents for cell in hook.__closure__ or ()]
        return all(_is_mean(found) for found in inner if callable(found))
    return name in MEAN
