"""Invariant: W ranks on their batches make the gradient of one process on the union.

``run`` makes both gradients, ``judge`` says what they are to each other, and
``untouched`` puts back whatever the trial changes. Besides weights' gradients, buffers
and modes, a forward and backward pass may change attributes of modules, generators, the
state of a communication hook, what DDP's reducer takes for used, and all of that in the
modules that a loss uses without their being in the model.
"""

import copy
import inspect
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from math import isfinite
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from allranks.guard.datasets import batch_rows
from allranks.guard.digests import dense, fetch, layout, local
from allranks.guard.exchange import Exchange, GuardError, union
from allranks.guard.randomness import generators, preserved
from allranks.guard.targets import Targets
from allranks.guard.wrappers import NOT_THE_MEAN, WRAPPERS, other_reduction

WHERE = "preflight"  # what this check is called
Loss = Callable[[nn.Module, Any], torch.Tensor]
Gradients = dict[str, torch.Tensor]

AVERAGED = "DDP and FSDP average over the ranks. "
SUM = AVERAGED + "Is the loss a sum over samples? Then make it their mean. "
SHARED = (
    "Is it computed from all ranks' features, of which only this rank's pass gradients "
    "on? Multiply it by the number of ranks, or gather with "
    "torch.distributed.nn.functional. "
)
ALREADY = "Or is it divided by the number of ranks already? DDP and FSDP do that."
SUMS = f"{SUM}{SHARED}{ALREADY}"
OTHER = "The loss has a factor that one process does not have."
STEPS = "Divide each loss by the number of passes that add up."
WORLD = "The ranks' gradients are added, not averaged."
UNEVEN = (
    "A mean of means weights the ranks alike: divide each rank's sum by the count of "
    "all ranks, times the number of ranks."
)
UNLIKE = (
    "On the same union each rank's own gradient is another one (norms by rank: {}), so "
    "loss() uses what is not the same on all ranks: a criterion's own weights, a "
    "tensor that is not registered, settings drawn by each rank, or a term or an "
    "operation that only some ranks add (if rank == 0)."
)
PARTS = (
    "The ranks count different things (tokens, masks, pairs), or samples meet in the "
    "loss: sum over all ranks' counts, and let gradients pass the gather."
)
DRAWS = (
    "preflight's loss draws random numbers in evaluation mode too ({}), so that even "
    "two gradients of one batch differ: it cannot be compared. Draw them outside and "
    "make them part of the batch, such as (x, noise, t); then both sides get the same."
)
CANCELS = (
    "preflight's loss() reads the number of ranks. One process on the union gets the "
    "same factor, so here it cancels, and a loss that is too small or large passes. "
    "Pass backward=, what your training does for gradients, and a loss() without it."
)
MANY = 1000  # entries; a longer list that a loss refers to is data
LARGE = 1 << 24  # elements; so is a larger tensor
DRAWERS = "Generator", "RandomState"  # NumPy's, which need not be there
OWN = vars(nn.Module()).keys()  # attributes that torch keeps in each module
WORLD_SIZE = {"world_size", "worldsize", "get_world_size", "num_replicas", "nranks"}


class Trial:
    """Makes a gradient in two ways: by the ranks, and by one process on the union.

    Args:
        exchange: between the ranks.
        targets: with the model, whose gradients it takes away.
        loss: ``loss(model, batch)``, the mean loss as one process would write it.
        backward: makes gradients as the training does; None for the plain way.
    """

    def __init__(
        self,
        exchange: Exchange,
        targets: Targets,
        loss: Loss,
        backward: Callable[[list[Any]], None] | None,
    ) -> None:
        self.exchange, self.loss = exchange, loss
        self.model, self.parameters = targets.model, targets.parameters()
        ddp = isinstance(self.model, DistributedDataParallel)
        self.plain = self.model.module if ddp else self.model
        # What a communication hook leaves is no mean, so the mean is taken here.
        self.averages = ddp and backward is None and bool(other_reduction(self.model))
        self.backward = backward or self._backward
        self.losses: list[torch.Tensor] = []  # of this rank's passes; each a share
        self.union_loss = torch.zeros(())

    def by_ranks(self, batches: list[Any]) -> Gradients:
        """Return what the training makes of each rank's own batches."""
        gradients = self._make(self.backward, batches)
        if not self.averages:
            return gradients
        return {
            name: self.exchange.mean(WHERE, dense(gradient)).to(gradient)
            for name, gradient in gradients.items()
        }

    def on_union(self, batch: Any) -> Gradients:
        """Return what one process makes of all ranks' samples in one batch."""

        def one_process() -> None:
            loss = self.loss(self.plain, batch)
            self.union_loss = loss.detach()
            loss.backward()

        return self._make(one_process)

    def _backward(self, batches: list[Any]) -> None:
        with self.model.no_sync() if self.averages else nullcontext():
            for batch in batches:
                loss = self.loss(self.model, batch) / len(batches)
                self.losses.append(loss.detach())
                loss.backward()

    def _make(self, work: Callable[..., None], *args: Any) -> Gradients:
        """Call a function, and take the gradients; raise on all ranks if one fails."""
        error = None
        try:
            work(*args)
        except Exception as failed:
            error = failed
        self.exchange.agree(WHERE, error)
        return _taken(self.parameters)

    def all_losses(self) -> torch.Tensor:
        """Return each rank's loss, and that of the union, for all ranks: (W, 2)."""
        own = sum(self.losses, torch.zeros(()))
        both = torch.stack([own.cpu(), self.union_loss.cpu()])
        return self.exchange.floats(WHERE, both)


def run(
    exchange: Exchange,
    targets: Targets,
    loss: Loss,
    batches: Sequence[Any],
    backward: Callable[[list[Any]], None] | None,
    tolerance: float,
) -> None:
    """Raise if the training's gradient is not that of the union of all batches.

    The latter is what one process makes if it gives all ranks' samples to ``loss`` in
    one batch. A sharded model does not exist in one process. There every rank takes the
    union, and the mean of equal gradients is the gradient that we want.
    """
    model, parameters = targets.model, targets.parameters()
    if backward is None and reads_world_size(loss):
        exchange.warn(CANCELS)
    trial = Trial(exchange, targets, loss, backward)
    with (
        preserved(targets.device),
        untouched(model, loss, backward),
        torch.enable_grad(),
    ):
        _without_chance(model)
        _taken(parameters)  # what the training has left, so that nothing adds to it
        before = generators(targets.device)
        ours = trial.by_ranks(list(batches))
        joined = union(exchange, list(batches))
        theirs = trial.on_union(joined)
        table = exchange.floats(WHERE, _products(ours, theirs)).double()  # (W, P, 3)
        num_own = sum(map(batch_rows, batches))
        counts = [row[0] for row in exchange.integers(WHERE, [num_own])]
        wrong = judge(list(parameters), table, counts, len(batches), tolerance)
        if not wrong:
            return
        reduction = other_reduction(model)
        if reduction and not trial.averages:
            exchange.warn(NOT_THE_MEAN.format(reduction))
            return
        if wrong.endswith(SUMS) and backward is None:
            wrong = wrong.removesuffix(SUMS) + _which(trial.all_losses())
        after = generators(targets.device)
        # The same gradient again: another one, if the loss is a matter of chance.
        again = _products(trial.on_union(joined), theirs)
    drew = [name for name in before if before[name] != after[name]]
    if _is_chance(exchange, drew, again.sum(0)):
        return
    # A shard is another part on each rank, so only whole parameters have one norm.
    whole = [place for place, p in enumerate(parameters.values()) if not layout(p)]
    norms = table[:, whole, 1].sum(1).sqrt()  # (W,): of the same union on each rank
    if whole and norms.max() - norms.min() > 1e-3 * norms.max():
        said = ", ".join(f"{norm:.4g}" for norm in norms.tolist())
        wrong = f"{wrong.partition(' (samples')[0]}. {UNLIKE.format(said)}"
    raise GuardError(f"{WHERE}: the ranks' gradient is {wrong}")


def _which(values: torch.Tensor) -> str:
    """Tell a sum from a loss of all ranks' features, if both are too small.

    Args:
        values: each rank's loss, and the loss of the union: (W, 2).
    """
    own, whole = values[:, 0], values[:, 1]
    near = 1e-3 * whole.abs().max()
    if (own - whole).abs().max() < near:
        return AVERAGED + SHARED.strip()  # every rank has the loss of the union
    if (own.sum() - whole).abs().max() < near:
        return SUM + ALREADY
    return SUMS


def _without_chance(model: nn.Module) -> None:
    """Switch off what makes a sample's gradient depend on chance or on other samples.

    In evaluation mode there is no dropout, and BatchNorm takes its running statistics.
    Recurrent layers without dropout stay in training mode, because cuDNN computes their
    gradients only there.
    """
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.RNNBase) and not module.dropout:
            module.training = True


def _taken(parameters: dict[str, nn.Parameter]) -> Gradients:
    """Take the gradients from the parameters, and return them, zeros where None."""
    gradients = {}
    for name, parameter in parameters.items():
        grad, parameter.grad = parameter.grad, None
        gradients[name] = torch.zeros_like(parameter) if grad is None else grad.clone()
    return gradients


def _products(ours: Gradients, theirs: Gradients) -> torch.Tensor:
    """Return the squared norms of difference, union and ours by parameter: (P, 3).

    The difference is taken here, because numbers travel as float32. Between two squares
    that were rounded to it, the difference would look like an error of 1e-4.
    """
    products = []
    for name in ours:
        own, other = (dense(local(x[name])).double() for x in (ours, theirs))
        rows = own - other, other, own
        products.append(torch.stack([row.square().sum() for row in rows]))
    return torch.stack(fetch(products)) if products else torch.zeros(0, 3)


def judge(
    names: list[str],
    table: torch.Tensor,
    counts: list[int],
    steps: int,
    tolerance: float,
) -> str:
    """Say what the gradients are if they are not the union's; "" if they are.

    Args:
        names: of the parameters.
        table: squared norms of difference, union and ours: (W, P, 3).
        counts: samples by rank.
        steps: backward passes that add up.
        tolerance: relative error that counts as rounding.
    """
    # Over all ranks and parameters. The dot product follows from three squared norms:
    # |ours - theirs|^2 = |ours|^2 + |theirs|^2 - 2 ours * theirs.
    off, theirs, ours = table.sum(dim=(0, 1)).tolist()
    if (theirs == 0 and ours == 0) or not (isfinite(theirs) or isfinite(ours)):
        return ""  # nothing to compare
    error, dot = off**0.5, (ours + theirs - off) / 2
    if error <= tolerance * max(theirs, 1e-300) ** 0.5:
        return ""
    ratio, size = dot / max(theirs, 1e-300), table.shape[0]
    # What is left of ours beside the part along theirs; little if only a factor is off.
    apart = max(ours - dot * ratio, 0) ** 0.5
    if ratio > 0 and apart <= tolerance * ours**0.5:
        close = {1 / size: SUMS, steps: STEPS, size: WORLD, steps / size: SUMS}
        why = UNEVEN if len(set(counts)) > 1 else OTHER
        why = next(
            (w for r, w in close.items() if r != 1 and abs(ratio / r - 1) < 0.01),
            why,
        )
        said = f"{ratio:.6g} times the gradient of one process on the union"
    else:
        worst = names[int(table[:, :, 0].sum(dim=0).argmax())]
        said = (
            "not the gradient of one process on the union: off by "
            f"{100 * error / max(theirs, 1e-300) ** 0.5:.3g} %, most in {worst}"
        )
        why = UNEVEN if len(set(counts)) > 1 else PARTS
    passes = "pass" if steps == 1 else "passes"
    return f"{said} (samples by rank: {counts}, {steps} backward {passes}). {why}"


def _is_chance(exchange: Exchange, drew: list[str], again: torch.Tensor) -> bool:
    """Warn if the gradient of a loss is a matter of chance, and tell whether it is.

    Args:
        exchange: between the ranks, which all do the same.
        drew: generators that this rank's loss has drawn from.
        again: squared norms of difference, first and second, for the same gradient
            taken twice, summed over this rank's parameters: (3,).
    """
    off, first, _ = again.tolist()
    if not drew and off > 1e-6 * first:
        drew = ["a generator of its own"]
    said = [text for text in exchange.texts(" and ".join(drew)) if text]
    if said:
        exchange.warn(DRAWS.format(said[0]))
    return bool(said)


def reads_world_size(function: Callable, depth: int = 2) -> bool:
    """Tell whether a function, or one that it calls, reads the number of ranks."""
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
    called = filter(inspect.isfunction, referred(function))
    return any(reads_world_size(inner, depth - 1) for inner in called)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 20


@contextmanager
def untouched(model: nn.Module, *functions: Callable | None) -> Iterator[None]:
    """Restore at the end of a block what a forward and backward pass may change.

    Args:
        model: as it is trained.
        functions: those that make the passes; None stands for none. What they refer to
            is restored too.
    """
    roots = [model, *(x for f in functions if f for x in referred(f))]
    inside = [m for x in roots if isinstance(x, nn.Module) for m in x.modules()]
    modules = list({id(m): m for m in inside}.values())  # each once
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
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    things = own + named
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a variable that gets its value later
            things.append(cell.cell_contents)
    few = [x for x in things if isinstance(x, list | tuple) and len(x) < MANY]
    return [*things, *(x for value in few for x in value)]


def _tensors(modules: list[nn.Module]) -> Callable[[], None]:
    """Copy gradients, buffers and tensors among the attributes."""
    others = [x for m in modules for x in (*m.buffers(False), *_plain(m).values())]
    values = [_copy(x) for x in others if torch.is_tensor(x) and _is_writable(x)]
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
        for put_back in inside:
            put_back()

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
    states = [state for _, state in getattr(module, "_comm_hooks", ())]
    states += [x for state in states for x in _fields(state).values()]
    return [state for state in states if _fields(state)]


def _fields(state: Any) -> dict[str, Any]:
    """Return an object's attributes; PowerSGD's state keeps them in slots."""
    apart = dist.ProcessGroup | nn.Module | torch.Tensor | type | dict | list
    if isinstance(state, apart) or type(state).__module__ == "builtins":
        return {}
    slots = [x for kind in type(state).__mro__ for x in getattr(kind, "__slots__", ())]
    own = {name: getattr(state, name) for name in slots if hasattr(state, name)}
    return own | dict(getattr(state, "__dict__", {}))


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
