"""Invariant: all ranks run one model in one way: its modules, settings and modes."""

from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .digests import number

MORE = "dropout", "num_heads", "norm_first"  # settings not among __constants__
OPTIONS = (
    "broadcast_buffers",
    "forward_sync_buffers",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "static_graph",
)


def kept(model: nn.Module, out: Callable[[str], bool]) -> list:
    """The modules by name, but for those to ignore."""
    return [(name, m) for name, m in model.named_modules() if not out(name)]


def modules(model: nn.Module, out: Callable[[str], bool]) -> str:
    """A line for each module's class, and for each of its settings."""
    lines = []
    for name, module in kept(model, out):
        name, kind, own = name or "the model", type(module), vars(module)
        lines.append(f"{name} is a {kind.__name__}{source(kind)}")
        keys = (*getattr(kind, "__constants__", ()), *MORE)
        keys = OPTIONS if isinstance(module, DistributedDataParallel) else keys
        lines += [
            f"{name}.{key}={own[key]}"
            for key in dict.fromkeys(keys)
            if key in own and is_setting(own[key])
        ]
        lines += [
            f"{name}.{key} is {value.__name__}"
            for key, value in own.items()
            if isinstance(value, FunctionType | BuiltinFunctionType)
            and (value.__module__ or "torch").startswith("torch.")
        ]
    return "\n".join(lines)


def source(kind: type) -> str:
    """Which code the forward of a class is, if the class is not torch's."""
    code = getattr(kind.forward, "__code__", None)
    if code is None or kind.forward.__module__.startswith("torch."):
        return ""
    return f", whose forward is code {number(written(code)):x}"


def written(code) -> str:
    """What a function does, without where it is written."""
    inner = sorted(
        written(x) if hasattr(x, "co_code") else repr(x)
        for x in code.co_consts
        if not isinstance(x, frozenset)  # its order is a process's own
    )
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {inner}"


def modes(model: nn.Module, out: Callable[[str], bool], forward: str) -> str:
    """A line for each module's mode, and for what torch is set to."""
    lines = [
        f"{name or 'the model'} ({type(module).__name__}) is in "
        f"{'training' if module.training else 'evaluation'}"
        for name, module in kept(model, out)
    ]
    lines.append(f"torch computes in {torch.get_default_dtype()} by default")
    lines.append(f"matmul's precision is {torch.get_float32_matmul_precision()}")
    lines.append(
        f"deterministic algorithms: {torch.are_deterministic_algorithms_enabled()}"
    )
    return "\n".join([*lines, forward])


def autocast(device: torch.device) -> str:
    """Which precision a forward pass runs in, as of now."""
    try:
        on = torch.is_autocast_enabled(device.type)
        return f"forward's autocast is {torch.get_autocast_dtype(device.type)}" * on
    except (RuntimeError, TypeError):  # a device or a torch without it
        return ""


def is_setting(value) -> bool:
    """Whether its text is its value."""
    if isinstance(value, list | tuple):
        return all(map(is_setting, value))
    return value is None or isinstance(value, int | float | str | torch.dtype)


def why(line: str) -> str:
    """What to do about a line that is not the same on all ranks."""
    if line.endswith((" is in training", " is in evaluation")):
        return (
            " A rank that evaluates must call train() before it trains on, and only on "
            "what the others train too."
        )
    if "autocast" in line:
        return " All ranks must enter autocast, with one dtype, or none."
    if ", whose forward is code " in line:
        return " Run the same version of the code on all ranks and nodes."
    if " is a " in line or "." in line.partition("=")[0]:
        return " Build the model from the same settings on all ranks."
    return " Set it alike on all ranks."
