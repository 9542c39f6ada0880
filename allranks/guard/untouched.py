"""Whatever a trial run changes is put back: the trial leaves no trace in a training.

Besides weights' gradients, buffers and modes, a forward and backward pass may change
attributes of modules, generators, the state of a communication hook, what DDP's reducer
takes for used, and all of that in the modules that a loss uses without their being in
the model.
"""

import copy
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from allranks.guard.wrappers import WRAPPERS

MANY = 1000  # entries; a longer list that a loss refers to is data
LARGE = 1 << 24  # elements; so is a larger tensor
DRAWERS = "Generator", "RandomState"  # NumPy's, which need not be there
OWN = vars(nn.Module()).keys()  # attributes that torch keeps in each module


@contextmanager
def untouched(model: nn.Module, *functions: Callable | None) -> Iterator[None]:
    """Restore at the end of a block what a forward and backward pass may change.

    Args:
        model: as it is trained.
        functions: those that make the passes; None stands for none. What they refer to
            is restored too.
    """
    roots = [model, *(x for f in functions if f for x in referred(f))]
    found = [m for x in roots if isinstance(x, nn.Module) for m in x.modules()]
    modules = list({id(m): m for m in found}.values())
    restores = [_tensors(modules), _modes(modules), *map(_attributes, modules)]
    loose = [x for x in roots if torch.is_tensor(x) and not x.requires_grad]
    restores += [_copy(x) for x in loose if x.numel() <= LARGE and _is_writable(x)]
    restores += [_generator(x) for x in roots if not isinstance(x, nn.Module)]
    restores += [_hook(state) for m in modules for state in _states(m)]
    restores += [_reducer(m) for m in modules]
    try:
        yield
    finally:
        for restore in restores:
            restore()


def referred(function: Callable) -> list[Any]:
    """List what a function refers to: its globals, its closure, its object."""
    function = inspect.unwrap(getattr(function, "func", function))
    if isinstance(function, nn.Module):
        return [function]
    own = [getattr(function, "__self__", None)]
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function):
        return own
    held = own + [function.__globals__.get(name) for name in function.__code__.co_names]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a variable that gets its value later
            held.append(cell.cell_contents)
    few = [x for x in held if isinstance(x, list | tuple) and len(x) < MANY]
    return [*held, *(x for value in few for x in value)]


def _tensors(modules: list[nn.Module]) -> Callable[[], None]:
    """Copy gradients, buffers and tensors among the attributes."""
    held = [x for m in modules for x in (*m.buffers(False), *_plain(m).values())]
    values = [_copy(x) for x in held if torch.is_tensor(x) and _is_writable(x)]
    grads = [
        (p, p.grad, None if p.grad is None else p.grad.clone())
        for m in modules
        for p in m.parameters(False)
    ]

    def restore() -> None:
        for put_back in values:
            put_back()
        with torch.no_grad():
            for parameter, grad, value in grads:
                parameter.grad = grad
                if value is not None:
                    grad.copy_(value)

    return restore


def _is_writable(tensor: torch.Tensor) -> bool:
    """Tell whether a pass could write to a tensor: not if it is expanded."""
    if tensor.is_meta or tensor.layout != torch.strided:
        return not tensor.is_meta
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return not any(step == 0 and size > 1 for size, step in steps)


def _copy(tensor: torch.Tensor) -> Callable[[], None]:
    value = tensor.detach().clone()
    return lambda: tensor.data.copy_(value)


def _modes(modules: list[nn.Module]) -> Callable[[], None]:
    modes = [(m, m.training) for m in modules]

    def restore() -> None:
        for module, mode in modes:
            module.training = mode

    return restore


def _plain(module: nn.Module) -> dict[str, Any]:
    """Return the attributes that a module's own forward may change."""
    # FSDP2 puts a class of its own before the module's.
    homes = (kind.__module__ for kind in type(module).__mro__)
    home = next(x for x in homes if not x.startswith("torch.distributed.fsdp"))
    if isinstance(module, WRAPPERS) or home.startswith("torch."):
        return {}
    return {k: v for k, v in vars(module).items() if k not in OWN}


def _attributes(module: nn.Module) -> Callable[[], None]:
    """Remember a module's plain attributes, lists and dicts among them, and buffers."""
    own, buffers = _plain(module), dict(module._buffers)
    inside = [_contents(x) for x in own.values()]
    inside += [_generator(x) for x in own.values()]

    def restore() -> None:
        for key in set(_plain(module)) - set(own):
            vars(module).pop(key)
        vars(module).update(own)
        module._buffers.update(buffers)
        for found in inside:
            found()

    return restore


def _contents(thing: Any) -> Callable[[], None]:
    """Remember what a list or a dict holds."""
    if type(thing) is list and len(thing) < MANY:
        items = list(thing)
        return lambda: thing.__setitem__(slice(None), items)
    if type(thing) is dict and len(thing) < MANY:
        pairs = dict(thing)
        return lambda: (thing.clear(), thing.update(pairs))
    return lambda: None


def _generator(thing: Any) -> Callable[[], None]:
    """Remember the state of a generator; of anything else nothing."""
    if isinstance(thing, torch.Generator):
        state = thing.get_state()
        return lambda: thing.set_state(state)
    if isinstance(thing, random.Random):
        state = thing.getstate()
        return lambda: thing.setstate(state)
    if type(thing).__module__.startswith("numpy") and type(thing).__name__ in DRAWERS:
        bits = getattr(thing, "bit_generator", None)
        if bits is not None:
            state = copy.deepcopy(bits.state)
            return lambda: setattr(bits, "state", state)
        state = thing.get_state()
        return lambda: thing.set_state(state)
    return _contents(thing)


def _reducer(module: nn.Module) -> Callable[[], None]:
    """Forget which parameters a trial has used, as DDP knows them.

    Any backward marks them in DDP's reducer, also one of the module without its
    wrapper, but only one of the wrapper's clears the marks. What is left would tell the
    next step that all ranks have a gradient of a parameter that none of them has used.
    """
    ddp = isinstance(module, DistributedDataParallel)
    if ddp and module.find_unused_parameters and not module.static_graph:
        return module.reducer._reset_state
    return lambda: None


def _states(module: nn.Module) -> list[Any]:
    """List the states of DDP's communication hooks, and those within them."""
    if not isinstance(module, DistributedDataParallel):
        return []
    found = [state for _, state in getattr(module, "_comm_hooks", ())]
    found += [x for state in found for x in _fields(state).values()]
    return [state for state in found if _fields(state)]


def _fields(state: Any) -> dict[str, Any]:
    """Return an object's attributes; PowerSGD's state keeps them in slots."""
    apart = dist.ProcessGroup | nn.Module | torch.Tensor | type | dict | list
    if isinstance(state, apart) or type(state).__module__ == "builtins":
        return {}
    slots = [x for kind in type(state).__mro__ for x in getattr(kind, "__slots__", ())]
    held = {name: getattr(state, name) for name in slots if hasattr(state, name)}
    return held | dict(getattr(state, "__dict__", {}))


def _hook(state: Any) -> Callable[[], None]:
    """Remember the state of a communication hook, such as PowerSGD's."""
    own = _fields(state)
    values = {name: _copied(value) for name, value in own.items()}

    def restore() -> None:
        for name in set(_fields(state)) - set(own):
            object.__delattr__(state, name)
        for name, value in own.items():
            if isinstance(value, dict):
                value.clear()
                value.update(values[name])
            elif torch.is_tensor(value):
                value.data.copy_(values[name])
            else:
                value = values[name]
            object.__setattr__(state, name, value)  # a frozen dataclass, too

    return restore


def _copied(value: Any) -> Any:
    """Copy tensors, what dicts and lists hold, and generators; keep the rest."""
    if torch.is_tensor(value):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_copied(v) for v in value]
    numpy = type(value).__module__.startswith("numpy")
    if isinstance(value, random.Random) or numpy:
        return copy.deepcopy(value)
    return value
