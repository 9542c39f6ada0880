"""Invariant: W ranks on their batches make the gradient of one rank on the union."""

import random
import sys
from contextlib import contextmanager
from math import isfinite

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from . import chance
from .digests import dense, fetch, layout, local
from .exchange import GuardError
from .loaders import batch_rows
from .union import join
from .worldsize import CANCELS, reads_world_size


def accelerator(device: torch.device):
    """The device's module of torch with a random state, such as torch.cuda; or None."""
    return None if device.type in ("cpu", "meta") else torch.get_device_module(device)


@contextmanager
def untouched(model: nn.Module, device: torch.device):
    """Give back random states, buffers, gradients and modes as they were."""
    module = accelerator(device)
    states = torch.get_rng_state(), random.getstate()
    there = module.get_rng_state(device) if module else None
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    grads = [
        (p, p.grad, None if p.grad is None else p.grad.clone())
        for p in model.parameters()
    ]
    modes = [(m, m.training) for m in model.modules()]
    try:
        yield
    finally:
        for m, mode in modes:
            m.training = mode
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
            for parameter, grad, value in grads:
                parameter.grad = grad
                if value is not None:
                    grad.copy_(value)
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if module:
            module.set_rng_state(there, device)
        if numpy:
            numpy.random.set_state(numpy_state)


def quiet(model: nn.Module) -> None:
    """Switch off what makes a batch's gradient depend on chance or on neighbours.

    Evaluation mode: no dropout, and BatchNorm takes its running statistics. Recurrent
    layers without dropout stay: cuDNN computes their gradients in training only.
    """
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.RNNBase) and not module.dropout:
            module.training = True


def gradients(parameters: dict) -> dict:
    """Take the gradients away from the parameters."""
    found = {}
    for name, parameter in parameters.items():
        grad, parameter.grad = parameter.grad, None
        found[name] = torch.zeros_like(parameter) if grad is None else grad.clone()
    return found


def _products(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Dot product, union squared, ours squared: (3,), still on the device."""
    ours, theirs = dense(ours).double(), dense(theirs).double()
    pairs = (ours, theirs), (theirs, theirs), (ours, ours)
    return torch.stack([(x * y).sum() for x, y in pairs])


def run(checks, loss, batches, backward, tolerance):
    """Compare the training's gradient with the union's; raise if they differ.

    The union's gradient: one process gives all ranks' samples to ``loss`` in one batch.
    A sharded model cannot be had in one process: there every rank takes the union, and
    the mean of equal gradients is that gradient.
    """
    where, exchange, model = "preflight", checks.exchange, checks.model
    parameters = checks.parameters()
    plain = model.module if isinstance(model, DistributedDataParallel) else model

    if backward is None and reads_world_size(loss):
        checks.tell(CANCELS)

    def default(parts: list) -> None:
        for part in parts:
            (loss(model, part) / len(parts)).backward()

    def attempt(work, *args) -> dict:
        error = None
        try:
            work(*args)
        except Exception as found:
            error = found
        exchange.agree(where, error)
        return gradients(parameters)

    with untouched(model, checks.device), torch.enable_grad():
        quiet(model)
        gradients(parameters)
        before = chance.generators(accelerator(checks.device), checks.device)
        ours = attempt(backward or default, list(batches))
        union = join(exchange, list(batches))
        theirs = attempt(lambda: loss(plain, union).backward())
        numbers = products(ours, theirs)
        table = exchange.floats(where, numbers).double()  # (W, P, 3)
        counts = [
            c[0] for c in exchange.integers(where, [sum(map(batch_rows, batches))])
        ]
        wrong = judge(list(parameters), table, counts, len(batches), tolerance)
        if not wrong:
            return
        after = chance.generators(accelerator(checks.device), checks.device)
        again = products(attempt(lambda: loss(plain, union).backward()), theirs)
    if chance.tell(checks, where, chance.moved(before, after), again.sum(0)):
        return
    whole = [place for place, p in enumerate(parameters.values()) if not layout(p)]
    norms = table[:, whole, 1].sum(1).sqrt()  # each rank's, of one and the same union
    if whole and norms.max() - norms.min() > 1e-3 * norms.max():
        said = ", ".join(f"{norm:.4g}" for norm in norms.tolist())
        wrong = f"{wrong.partition(' (samples')[0]}. {UNLIKE.format(said)}"
    raise GuardError(f"{where}: the ranks' gradient is {wrong}")


def products(ours: dict, theirs: dict) -> torch.Tensor:
    """For each parameter: dot product, union squared, ours squared: (P, 3)."""
    found = [_products(local(ours[n]), local(theirs[n])) for n in ours]
    return torch.stack(fetch(found)) if found else torch.zeros(0, 3)


def judge(names, table, counts, steps, tolerance) -> str:
    """Say what gradients (dot, union², ours²; (W, P, 3)) are, if not the union's."""
    dot, union, ours = table.sum(dim=(0, 1)).tolist()
    if (union == 0 and ours == 0) or not (isfinite(union) or isfinite(ours)):
        return ""  # nothing to compare
    error = max(ours - 2 * dot + union, 0) ** 0.5
    if error <= tolerance * max(union, 1e-300) ** 0.5:
        return ""
    ratio, size = dot / max(union, 1e-300), table.shape[0]
    apart = max(ours - dot * ratio, 0) ** 0.5
    if ratio > 0 and apart <= tolerance * ours**0.5:
        close = {1 / size: SUM, steps: STEPS, size: WORLD, steps / size: SUM}
        why = UNEVEN if len(set(counts)) > 1 else OTHER
        why = next(
            (w for r, w in close.items() if r != 1 and abs(ratio / r - 1) < 0.01),
            why,
        )
        said = f"{ratio:.6g} times the gradient of one process on the union"
    else:
        each = table.sum(dim=0)
        off = (each[:, 2] - 2 * each[:, 0] + each[:, 1]).clamp_min(0)
        worst = names[int(off.argmax())]
        said = (
            "not the gradient of one process on the union: off by "
            f"{100 * error / max(union, 1e-300) ** 0.5:.3g} %, most in {worst}"
        )
        why = UNEVEN if len(set(counts)) > 1 else PARTS
    passes = "pass" if steps == 1 else "passes"
    return f"{said} (samples by rank: {counts}, {steps} backward {passes}). {why}"


SUM = (
    "DDP and FSDP average over the ranks: the loss must be a mean, not a sum, and must "
    "not be divided by the number of ranks."
)
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
    "tensor that is not registered, settings drawn by each rank, or the rank itself."
)
PARTS = (
    "The ranks count different things (tokens, masks, pairs), or samples meet in the "
    "loss: sum over all ranks' counts, and let gradients pass the gather."
)
