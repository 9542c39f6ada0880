"""Invariant: W ranks on their batches make the gradient of one process on the union."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import isfinite
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from allranks.guard.digests import dense, fetch, layout, local
from allranks.guard.exchange import Exchange, GuardError
from allranks.guard.loaders import batch_rows, union
from allranks.guard.randomness import generators, preserved
from allranks.guard.training import Training
from allranks.guard.untouched import referred, untouched
from allranks.guard.wrappers import NOT_THE_MEAN, strange

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
WORLD_SIZE = {"world_size", "worldsize", "get_world_size", "num_replicas", "nranks"}


def run(
    exchange: Exchange,
    training: Training,
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
    where, model = "preflight", training.model
    parameters = training.parameters()
    plain = model.module if isinstance(model, DistributedDataParallel) else model

    if backward is None and reads_world_size(loss):
        exchange.warn(CANCELS)

    values: list[torch.Tensor] = []  # of this rank's losses; then that of the union

    def alone(joined: Any) -> None:
        own = loss(plain, joined)
        values[:] = [sum(values, torch.zeros(())), own.detach()]
        own.backward()

    why = strange(model)
    past = bool(why) and isinstance(model, DistributedDataParallel)

    def default(parts: list[Any]) -> None:
        # What a communication hook leaves is no mean, and is not asked here.
        with model.no_sync() if past else nullcontext():
            for part in parts:
                own = loss(model, part) / len(parts)
                values.append(own.detach())
                own.backward()

    def attempt(work: Callable[..., None], *args: Any) -> Gradients:
        error = None
        try:
            work(*args)
        except Exception as found:
            error = found
        exchange.agree(where, error)
        return _taken(parameters)

    with (
        preserved(training.device),
        untouched(model, loss, backward),
        torch.enable_grad(),
    ):
        _without_chance(model)
        _taken(parameters)
        before = generators(training.device)
        ours = attempt(backward or default, list(batches))
        for name in ours if past and not backward else ():
            ours[name] = exchange.mean(where, dense(ours[name])).to(ours[name])
        joined = union(exchange, list(batches))
        theirs = attempt(alone, joined)
        numbers = _products(ours, theirs)
        table = exchange.floats(where, numbers).double()  # (W, P, 3)
        own = [sum(map(batch_rows, batches))]
        counts = [row[0] for row in exchange.integers(where, own)]
        wrong = judge(list(parameters), table, counts, len(batches), tolerance)
        if not wrong:
            return
        if why and (backward or not past):
            exchange.warn(NOT_THE_MEAN.format(why))
            return
        if wrong.endswith(SUMS) and backward is None:
            told = exchange.floats(where, torch.stack([x.cpu() for x in values]))
            wrong = wrong.removesuffix(SUMS) + _which(told)
        after = generators(training.device)
        again = _products(attempt(lambda: loss(plain, joined).backward()), theirs)
    drew = [name for name in before if before[name] != after[name]]
    if _is_chance(exchange, drew, again.sum(0)):
        return
    whole = [place for place, p in enumerate(parameters.values()) if not layout(p)]
    norms = table[:, whole, 1].sum(1).sqrt()  # (W,): of the same union on each rank
    if whole and norms.max() - norms.min() > 1e-3 * norms.max():
        said = ", ".join(f"{norm:.4g}" for norm in norms.tolist())
        wrong = f"{wrong.partition(' (samples')[0]}. {UNLIKE.format(said)}"
    raise GuardError(f"{where}: the ranks' gradient is {wrong}")


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
    found = {}
    for name, parameter in parameters.items():
        grad, parameter.grad = parameter.grad, None
        found[name] = torch.zeros_like(parameter) if grad is None else grad.clone()
    return found


def _products(ours: Gradients, theirs: Gradients) -> torch.Tensor:
    """Return the squared norms of difference, union and ours by parameter: (P, 3).

    The difference is taken here, because numbers travel as float32. Between two squares
    that were rounded to it, the difference would look like an error of 1e-4.
    """
    found = []
    for name in ours:
        mine, other = (dense(local(x[name])).double() for x in (ours, theirs))
        rows = mine - other, other, mine
        found.append(torch.stack([row.square().sum() for row in rows]))
    return torch.stack(fetch(found)) if found else torch.zeros(0, 3)


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
    off, theirs, ours = table.sum(dim=(0, 1)).tolist()
    if (theirs == 0 and ours == 0) or not (isfinite(theirs) or isfinite(ours)):
        return ""  # nothing to compare
    error, dot = off**0.5, (ours + theirs - off) / 2
    if error <= tolerance * max(theirs, 1e-300) ** 0.5:
        return ""
    ratio, size = dot / max(theirs, 1e-300), table.shape[0]
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
