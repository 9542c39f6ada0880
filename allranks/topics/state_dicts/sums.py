"""What wrappers do to a state dict's keys, what torch answers, and what repairs it.

An order lists wrappers from the inside out, so ``["DDP", "compile"]`` stands for
``torch.compile(DDP(net))``. A test lets torch wrap, save, load and repair in every
order, and compares it with the rules here. All functions are pure.
"""

from collections.abc import Sequence

SHAPES = {"hidden.weight": [4, 4], "head.weight": [2, 4]}  # of runs.state_dicts.Net
PREFIX = {"DDP": "module.", "compile": "_orig_mod."}
PREFIX |= {"DataParallel": "module.", "FSDP2": ""}
CALLS = {"compile": "torch.compile", "FSDP2": "fully_shard"}
CLASSES = {"DDP": "DistributedDataParallel", "compile": "OptimizedModule"}
MOST = 3  # wrappers
API = "torch.distributed.checkpoint.state_dict"
CONSUME = "consume_prefix_in_state_dict_if_present"
PLAIN = 'torch.load("net.pt", map_location="cpu")'
MATCHED = "<All keys matched successfully>"
REFUSED = {  # what torch says to a wrapper in the wrong place
    "DDP": "NotImplementedError: Operator c10d.broadcast_.default does not have a "
    "sharding strategy registered.",
    "FSDP2": "AssertionError: Each distinct composable distributed API can only be "
    "applied to a module once.",
    "compile": "AttributeError: 'function' object has no attribute 'state_dict'",
}


def call_of(order: Sequence[str]) -> str:
    """Write an order of wrappers as nested calls.

    >>> call_of(["FSDP2", "compile"])
    'torch.compile(fully_shard(net))'
    """
    text = "net"
    for wrapper in order:
        text = f"{CALLS.get(wrapper, wrapper)}({text})"
    return text


def check(order: Sequence[str]) -> None:
    """Raise an error for an order that torch refuses.

    Raises:
        ValueError: in torch's words; also for an unknown wrapper, and for too many.
    """
    for i, wrapper in enumerate(order):
        inner = order[:i]
        if wrapper not in PREFIX:
            raise ValueError(f"no wrapper {wrapper}: there are {', '.join(PREFIX)}")
        shell = [other for other in inner if other != "FSDP2"][-1:]
        refused = {
            "DDP": "FSDP2" in inner,
            "FSDP2": inner[-1:] == ["FSDP2"],
            "compile": shell == ["compile"],
        }
        if refused.get(wrapper):
            call = call_of(order[: i + 1])
            raise ValueError(f"torch refuses {call}: {REFUSED[wrapper]}")
    if len(order) > MOST:
        raise ValueError(f"{len(order)} wrappers do not fit here: at most {MOST}")


def describe(order: Sequence[str]) -> dict:
    """Describe the state dict of a wrapped model, and where in it the model is.

    Returns:
        ``call``, the order as calls; ``prefix`` and ``keys`` of the state dict;
        ``values``, "Tensor" or "DTensor"; ``class``, the outermost class, as torch's
        messages name it; ``inner``, an expression for the model without wrappers.

    >>> describe(["DDP", "compile"])["prefix"]
    '_orig_mod.module.'
    """
    outer = [wrapper for wrapper in order if wrapper != "FSDP2"]
    prefix = "".join(PREFIX[wrapper] for wrapper in reversed(order))
    name = CLASSES.get(outer[-1], outer[-1]) if outer else "Net"
    return {
        "call": call_of(order),
        "prefix": prefix,
        "keys": [prefix + key for key in SHAPES],
        "values": "DTensor" if "FSDP2" in order else "Tensor",
        "class": f"FSDP{name}" if list(order[-1:]) == ["FSDP2"] else name,
        "inner": f"net.{prefix}".rstrip("."),
    }


def answer(saved: dict, loaded: dict, strict: bool) -> dict:
    """Return what ``load_state_dict`` answers, and how many tensors it loads.

    Args:
        saved, loaded: as ``describe`` returns them.
        strict: the argument of ``load_state_dict``.
    Returns:
        ``raises``, whether it is an error; ``text``, the words; ``num``, of tensors.
    """
    head = f"RuntimeError: Error(s) in loading state_dict for {loaded['class']}:"
    # torch compares the keys first. Only where they fit are values copied, and then a
    # whole tensor meets a DTensor.
    if saved["prefix"] != loaded["prefix"]:
        wants, has = loaded["keys"], saved["keys"]
        if not strict:
            text = f"_IncompatibleKeys(missing_keys={wants}, unexpected_keys={has})"
            return {"raises": False, "text": text, "num": 0}
        lines = [
            f"\t{what} key(s) in state_dict: {', '.join(map(_quote, keys))}. "
            for what, keys in (("Missing", wants), ("Unexpected", has))
        ]
        return {"raises": True, "text": "\n".join([head, *lines]), "num": 0}
    if saved["values"] == loaded["values"]:
        return {"raises": False, "text": MATCHED, "num": len(SHAPES)}
    lines = [
        f'\tWhile copying the parameter named "{key}", whose dimensions in the model '
        f"are torch.Size({size}) and whose dimensions in the checkpoint are "
        f"torch.Size({size}), an exception occurred : ('aten.copy_.default got mixed "
        "torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor before "
        "calling distributed operators!',)."
        for key, size in zip(saved["keys"], SHAPES.values(), strict=True)
    ]
    return {"raises": True, "text": "\n".join([head, *lines]), "num": 0}


def programs(saved: dict, loaded: dict, strict: bool) -> dict:
    """Write the programs that save and load, and those that do it right.

    ``save`` and ``load`` belong together. To do it right, either the writer runs
    ``save_plain`` and the reader ``load_plain``; or, if the file exists already, the
    reader runs ``repair``.

    Args:
        saved, loaded: as ``describe`` returns them.
        strict: the argument of ``load_state_dict`` in ``load``.
    """
    shards, into = saved["values"] == "DTensor", loaded["values"] == "DTensor"
    file = 'f"net{rank}.pt"' if shards else '"net.pt"'
    state, flag = "net.state_dict()", "" if strict else ", strict=False"
    # Whole tensors are alike on all ranks, so one writes; of shards, each has its own.
    once = "if rank == 0:\n    torch.save({}, {})"
    plain = once.format(f"{saved['inner']}.state_dict()", '"net.pt"')
    if shards:
        plain = (
            f"from {API} import StateDictOptions, get_model_state_dict\n\n"
            "whole = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
            f"state = get_model_state_dict({saved['inner']}, options=whole)\n"
            + once.format("state", '"net.pt"')
        )
    read = f"torch.load({file})" if shards else PLAIN
    lines = [f"state = {read}"]
    if saved["prefix"]:
        lines.insert(0, f"from torch.nn.modules.utils import {CONSUME}\n")
        lines.append(f'{CONSUME}(state, "{saved["prefix"]}")')
    if shards and not into:
        lines.append("state = {key: part.full_tensor() for key, part in state.items()}")
    if into and not shards:
        lines.append(_fill(loaded, "state"))
    else:
        lines.append(f"{loaded['inner']}.load_state_dict(state)")
    return {
        "save": f"torch.save({state}, {file})" if shards else once.format(state, file),
        "load": f"net.load_state_dict({read}{flag})",
        "save_plain": plain,
        "load_plain": _fill(loaded, PLAIN),
        "repair": "\n".join(lines),
    }


def _fill(loaded: dict, state: str) -> str:
    """Write the lines that load whole tensors with plain keys into a wrapped model."""
    if loaded["values"] == "Tensor":
        return f"{loaded['inner']}.load_state_dict({state})"
    return (
        f"from {API} import StateDictOptions, set_model_state_dict\n\n"
        "whole = StateDictOptions(full_state_dict=True)\n"
        f"set_model_state_dict({loaded['inner']}, {state}, options=whole)"
    )


def _quote(key: str) -> str:
    return f'"{key}"'
