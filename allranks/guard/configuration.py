"""How a model and a data set are configured, as lines of text that ranks compare.

``describe`` and ``modes`` list modules, their settings and their modes, which have to
agree. ``constants`` are plain values among the attributes of any object. The program
may want these to differ, so the guard only warns about them.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from allranks.guard.digests import number
from allranks.guard.exchange import Exchange
from allranks.guard.wrappers import WRAPPERS

MORE = "dropout", "num_heads", "norm_first"  # settings that are not in __constants__
OPTIONS = (
    "broadcast_buffers",
    "forward_sync_buffers",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "static_graph",
)
BASE = frozenset(vars(nn.Module()))
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # of local_rank and numWorkers
# A rank may have a value for itself whose name has one of these words,
OWN = {
    *("rank", "local", "seed", "seeds", "shard", "worker", "workers", "timestamp"),
    *("hostname", "best", "seen", "debug", "verbose", "verbosity", "cache", "cached"),
}
# or ends in one of these. The last word says what the value is: best_loss is a loss,
# and loss_weight is a weight.
OWN_LAST = {
    *("device", "devices", "host", "node", "main", "master", "role", "stage"),
    *("world", "process", "pid", "port", "addr", "address", "path", "paths", "dir"),
    *("dirs", "dirname", "folder", "file", "files", "filename", "name", "logdir"),
    *("log", "logs", "logger", "logging", "time", "times", "stamp", "elapsed"),
    *("start", "begin", "end", "first", "last", "offset", "index", "indices", "idx"),
    *("id", "ids", "ptr", "pointer", "cursor", "count", "counts", "counter", "call"),
    *("calls", "step", "steps", "iter", "iters", "iteration", "iterations", "epoch"),
    *("epochs", "total", "samples", "loss", "losses", "acc", "accuracy", "metric"),
    "metrics",
}
CONFIG = "Config", "Namespace", "Args"  # how the names of classes of settings end
MANY = 200  # entries; larger tables are data
APART = (
    "{} is not the same on all ranks: {}. If it is meant to be, build the model and "
    "the data set from the same settings on all ranks."
)


def describe(model: nn.Module, ignored: Callable[[str], bool] | None = None) -> str:
    """Write a line for each module's class, and for each of its settings.

    Args:
        model: whose modules these are.
        ignored: says which names to leave out; None leaves out none.
    """
    lines = []
    for name, module in _named(model, ignored):
        name, kind, own = name or "the model", type(module), vars(module)
        lines.append(f"{name} is a {kind.__name__}{_forward_code(kind)}")
        keys = (*getattr(kind, "__constants__", ()), *MORE)
        keys = OPTIONS if isinstance(module, DistributedDataParallel) else keys
        lines += [
            f"{name}.{key}={own[key]}"
            for key in dict.fromkeys(keys)
            if key in own and _is_setting(own[key])
        ]
        lines += [
            f"{name}.{key} is {value.__name__}"
            for key, value in own.items()
            if isinstance(value, FunctionType | BuiltinFunctionType)
            and (value.__module__ or "torch").startswith("torch.")
        ]
    return "\n".join(lines)


def _named(
    model: nn.Module, ignored: Callable[[str], bool] | None
) -> list[tuple[str, nn.Module]]:
    modules = list(model.named_modules())
    return modules if ignored is None else [m for m in modules if not ignored(m[0])]


def _forward_code(kind: type[nn.Module]) -> str:
    """Name the code of a class's forward by its hash; "" if the class is torch's."""
    code = getattr(kind.forward, "__code__", None)
    if code is None or kind.forward.__module__.startswith("torch."):
        return ""
    return f", whose forward is code {number(_written(code)):x}"


def _written(code: CodeType) -> str:
    """Write what a function does, without the place where it is defined."""
    inner = sorted(
        _written(x) if hasattr(x, "co_code") else repr(x)
        for x in code.co_consts
        if not isinstance(x, frozenset)  # whose order differs between processes
    )
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {inner}"


def _is_setting(value: Any) -> bool:
    """Tell whether a value's text describes it completely."""
    if isinstance(value, list | tuple):
        return all(map(_is_setting, value))
    return value is None or isinstance(value, int | float | str | torch.dtype)


def modes(model: nn.Module, ignored: Callable[[str], bool], forward: str) -> str:
    """Write a line for each module's mode, and for each of torch's own settings.

    Args:
        model: whose modules these are.
        ignored: says which names to leave out.
        forward: a line about the precision in which the forward passes ran.
    """
    lines = [
        f"{name or 'the model'} ({type(module).__name__}) is in "
        f"{'training' if module.training else 'evaluation'}"
        for name, module in _named(model, ignored)
    ]
    lines.append(f"torch computes in {torch.get_default_dtype()} by default")
    lines.append(f"matmul's precision is {torch.get_float32_matmul_precision()}")
    lines.append(
        f"deterministic algorithms: {torch.are_deterministic_algorithms_enabled()}"
    )
    return "\n".join([*lines, forward])


def autocast(device: torch.device) -> str:
    """Say which precision a forward pass runs in now; "" without autocast."""
    try:
        if torch.is_autocast_enabled(device.type):
            return f"forward's autocast is {torch.get_autocast_dtype(device.type)}"
    except (RuntimeError, TypeError):  # this device or this torch has none
        pass
    return ""


def why(line: str) -> str:
    """Return advice about a line that is not the same on all ranks."""
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


def attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield name and value of what modules hold, except for what torch keeps there."""
    for name, module in model.named_modules():
        ours = type(module).__module__.startswith("torch.")
        if isinstance(module, WRAPPERS):
            continue  # they list the tensors of the module that they wrap
        for key, value in vars(module).items():
            if key not in BASE and not (ours and key.startswith("_")):
                yield f"{name}.{key}" if name else key, value


def constants(pairs: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Return plain values by name, as text, except those that a rank may have alone."""
    plain = {}
    for name, value in pairs:
        inner = {name: value}
        if isinstance(value, dict) and len(value) < MANY:
            inner = {f"{name}.{key}": x for key, x in value.items()}
        elif type(value).__name__.endswith(CONFIG) and hasattr(value, "__dict__"):
            inner = {f"{name}.{key}": x for key, x in vars(value).items()}
        for key, item in inner.items():
            if _is_plain(item) and not may_differ(key.rpartition(".")[2]):
                plain[key] = repr(item)
    return plain


def words(name: str) -> list[str]:
    """Return the words of a name, in lower case.

    >>> words("local_rank"), words("numWorkers2"), words("bidirectional")
    (['local', 'rank'], ['num', 'workers'], ['bidirectional'])
    """
    return [word.lower() for word in WORDS.findall(name)]


def may_differ(name: str) -> bool:
    """Tell whether a rank may have a value of this name alone, such as its seed."""
    parts = words(name)
    return bool(parts) and (not OWN.isdisjoint(parts) or parts[-1] in OWN_LAST)


def _is_plain(value: Any) -> bool:
    if type(value) is float:  # one that somebody typed, such as 0.07, no clock's
        return len(repr(value)) < 9
    return type(value) in (bool, int, str, torch.dtype) and len(repr(value)) < 40


def as_lines(plain: dict[str, str]) -> str:
    """Write constants as a text, with a line for each."""
    return "\n".join(f"{name}={value}" for name, value in plain.items())


def warn_of_other(exchange: Exchange, text: str) -> None:
    """Warn of the first constant that is not the same on all ranks, if there is one.

    Args:
        exchange: between the ranks.
        text: this rank's constants, as ``as_lines`` writes them.
    """
    other = differ(exchange.texts(text), exchange.ranks)
    if other:
        name, values = other
        exchange.warn(APART.format(name, exchange.by_ranks(values)))


def differ(texts: list[str], ranks: list[int]) -> tuple[str, list[str]] | None:
    """Return name and values of the first constant that differs; None if none does."""
    # Only what all ranks have is compared: a rank may lack a setting.
    rows = [dict(x.split("=", 1) for x in t.split("\n") if x) for t in texts]
    for name in rows[0]:
        values = [own.get(name, "") for own in rows]
        if "" not in values and len(set(values)) > 1 and not _ranked(values, ranks):
            return name, values
    return None


def _ranked(values: list[str], ranks: list[int]) -> bool:
    """Tell whether values differ because they name the rank: cuda:0 and cuda:1."""
    if set(values) == {"True", "False"}:
        return values.index("True") == 0 and values.count("True") == 1
    if all(v.isdigit() for v in values):  # rank, or an offset such as 100 * rank
        step = int(values[1])
        return values in ([str(r) for r in ranks], [str(step * r) for r in ranks])
    quoted = [re.sub(r"\d+", "", v) for v in values if v[0] in "'\""]
    return len(quoted) == len(values) and len(set(quoted)) == 1
