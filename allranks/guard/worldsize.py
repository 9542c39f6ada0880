"""Whether a loss reads the number of ranks, which the preflight cannot see."""

import inspect

WORLD_SIZE = {"world_size", "worldsize", "get_world_size", "num_replicas", "nranks"}
CANCELS = (
    "preflight's loss() reads the number of ranks. One process on the union gets the "
    "same factor, so here it cancels, and a loss that is too small or large passes. "
    "Pass backward=, what your training does for gradients, and a loss() without it."
)


def reads_world_size(function, depth: int = 2) -> bool:
    """Whether a function, or one that it calls, asks how many ranks there are."""
    function = inspect.unwrap(getattr(function, "func", function))
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    words = {*code.co_names, *code.co_freevars, *filter(_is_word, code.co_consts)}
    if any(word.lower() in WORLD_SIZE for word in words):
        return True
    if not depth:
        return False
    inner = inspect.getclosurevars(function) if inspect.isfunction(function) else None
    called = [*inner.globals.values(), *inner.nonlocals.values()] if inner else []
    return any(inspect.isfunction(f) and reads_world_size(f, depth - 1) for f in called)


def _is_word(value) -> bool:
    return isinstance(value, str) and len(value) < 20
