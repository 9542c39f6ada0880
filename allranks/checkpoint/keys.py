"""Find the state dict in what a file holds, and give its keys their plain names."""

from collections import OrderedDict
from typing import Any

from torch import Tensor

from allranks.checkpoint.formats import of_state
from allranks.checkpoint.refusals import Refusal, clean

MODELS = "model", "model_state_dict", "state_dict"  # its usual names
MOST = 9  # leading "module." that are removed, unless the reader names a number
WRAPPERS = {  # parts of keys that only wrappers add, wherever they stand
    "_orig_mod",  # torch.compile
    "_fsdp_wrapped_module",  # FSDP1
    "_checkpoint_wrapped_module",  # activation checkpointing
    "_forward_module",  # Lightning Fabric
}
COUNTER = "n_averaged"  # what AveragedModel (SWA, EMA) keeps beside the module


def has_tensors(state: Any) -> bool:
    """Tell whether it looks like a state dict: named values, some of them tensors."""
    named = isinstance(state, dict) and all(isinstance(k, str) for k in state)
    return named and any(isinstance(v, Tensor) for v in state.values())


def find_model(state: Any, entry: str | None = None) -> tuple[str, dict]:
    """Find the state dict, and return its entry's name and the state dict itself.

    The name is "" if the whole file is the state dict.

    Args:
        state: what the file holds.
        entry: the name that the reader asked for; None looks for the usual ones.
    Raises:
        Refusal: if there is none, or more than one that it could be.
    """
    state = state if isinstance(state, dict) else {}
    models = {k: v for k, v in state.items() if has_tensors(v)}
    known = [k for k in (MODELS if entry is None else [entry]) if k in models]
    if entry is None and not known:
        known = [""] if has_tensors(state) else list(models)
    if len(known) != 1:
        found = ", ".join(map(clean, models)) or "none"
        asked = "" if entry is None else f", not {clean(entry)!r}"
        if entry is None and not models and (what := of_state(state)):
            raise Refusal(f"{what}: it holds no weights")
        why = f"found {found} for a state dict{asked}"
        raise Refusal(f"{why}; --entry names the one")
    return known[0], models.get(known[0], state)


def split(name: str) -> list[str]:
    """Return the parts of a key, without those that only wrappers add."""
    return [part for part in name.split(".") if part not in WRAPPERS]


def weights(state: dict) -> dict:
    """Return a state dict without AveragedModel's counter, if it is of one."""
    others = [split(key)[0] for key in state if key != COUNTER]
    averaged = COUNTER in state and others and {*others} == {"module"}
    return {k: v for k, v in state.items() if not (averaged and k == COUNTER)}


def below(state: OrderedDict, prefix: str) -> OrderedDict:
    """Return the entries whose keys begin with a prefix, without it.

    Raises:
        Refusal: if no key begins with it.
    """
    if not prefix:
        return state
    found = OrderedDict(
        (key.removeprefix(prefix), value)
        for key, value in state.items()
        if key.startswith(prefix) and key != prefix
    )
    found._metadata = OrderedDict()  # layers' versions, for load_state_dict
    for path, version in getattr(state, "_metadata", {}).items():
        if f"{path}.".startswith(prefix):
            found._metadata[f"{path}.".removeprefix(prefix).rstrip(".")] = version
    if not found:
        some = ", ".join(clean(key, 60) for key in [*state][:2])
        raise Refusal(f"no key begins with {clean(prefix)!r}; they are {some}, ...")
    return found


def plain(state: dict, most: int = MOST) -> OrderedDict:
    """Copy a state dict without the prefixes that wrappers add to its keys.

    _orig_mod (torch.compile) and its like are removed wherever they are, since no
    model uses such names. A leading module (DataParallel, DDP) is removed as long
    as every key has it, but at most ``most`` times, since a model may own a
    submodule of that name.

    Raises:
        Refusal: if two keys would become the same.

    >>> list(plain({"_orig_mod.module.0.weight": 1, "_orig_mod.module.0.bias": 2}))
    ['0.weight', '0.bias']
    """
    depth, parts = 0, [split(key) for key in state]
    while depth < most and all(p[depth:-1][:1] == ["module"] for p in parts):
        depth += 1
    new = OrderedDict()
    for part, value in zip(parts, state.values(), strict=True):
        new[".".join(part[depth:])] = value  # tied tensors stay tied
    if len(new) < len(state):
        raise Refusal("two of its keys differ in nothing but a wrapper's name")
    new._metadata = OrderedDict()  # layers' versions, for load_state_dict
    for path, version in getattr(state, "_metadata", {}).items():
        new._metadata[".".join(split(path)[depth:])] = version
    return new
