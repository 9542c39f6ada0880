"""Communication hooks: what they leave in .grad need not be the mean."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .exchange import Exchange, GuardError, names
from .sharded import groups, units

MEAN = {  # of torch's own, those that leave the mean, if rounded to 16 bits
    "allreduce_hook",
    "fp16_compress_hook",
    "bf16_compress_hook",
    "_reducer_allreduce_and_upcast_hook",
}
JOIN = (
    "the model trains inside of Join, where a rank may end before the others: step() "
    "and epoch() check nothing there. Call check() after it."
)
NOT_THE_MEAN = (
    "{} makes gradients that need not be the mean of the ranks' own: the guard does "
    "not compare them with it. The other checks go on."
)
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


def refuse(exchange: Exchange, where: str, why: str, numbers: list[int]) -> None:
    """Raise if some ranks have a hook that others have not."""
    if len(set(numbers)) == 1:
        return
    texts = [text or "no hook" for text in exchange.texts(why)]
    groups_ = exchange.split(texts).items()
    said = "; ".join(f"{text} on {names(ranks)}" for text, ranks in groups_)
    raise GuardError(
        f"{where}: the ranks reduce gradients in different ways: {said} "
        f"({exchange.suspects(texts)}). Register one hook, on every rank."
    )


def joining(model: nn.Module) -> bool:
    """Whether a model trains inside of Join, where ranks make unequal steps."""
    configs = [getattr(m, "_join_config", None) for m in model.modules()]
    return any(getattr(config, "enable", False) for config in configs)


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile has taken a module."""
    own = getattr(module, "_compiled_call_impl", None) is not None
    return own or type(module).__name__ == "OptimizedModule"


def _is_mean(hook) -> bool:
    name = getattr(hook, "__qualname__", "")
    if not str(getattr(hook, "__module__", "")).startswith("torch.distributed."):
        return False
    if name.startswith(WRAPS):
        inner = [cell.cell_contents for cell in hook.__closure__ or ()]
        return all(_is_mean(found) for found in inner if callable(found))
    return name in MEAN
