"""Watch what an answer does: how a model runs, who waits for a work, who draws."""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from allranks.exercises.oracle import Wrong

OTHERS = ", from which others draw."
# Themselves, whatever a check puts there later:
_gather, _all_reduce = dist.all_gather_object, dist.all_reduce


def everyone(value: Any) -> list:
    """Return what each rank brings, by rank."""
    every = [None] * dist.get_world_size()
    _gather(every, value)
    return every


def dice(seed: int) -> torch.Generator:
    """Return a generator of random numbers that any rank can make."""
    return torch.Generator().manual_seed(seed)


def gradient(model: torch.nn.Module, loss: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a loss as one vector; the graph is kept."""
    learned = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, learned, retain_graph=True)
    return torch.cat([grad.flatten() for grad in grads])


def trainable(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the trainable parameters by name; refuse a gradient of a frozen one."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter
        elif parameter.grad is not None:
            raise Wrong(f"`{name}` is frozen, and now it has a gradient.")


def undivided(total: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what mistakes make of the mean over the ranks of what sums up to this."""
    return {
        "This is the sum: divide it by the world size.": total,
        "This was divided twice.": total / dist.get_world_size() ** 2,
    }


def grads(model: torch.nn.Module, lacks: str) -> torch.Tensor:
    """Return the gradients of a model as one vector; a frozen parameter has none.

    Args:
        model: whose parameters.
        lacks: what to say of one without a gradient, with its name in place of {}.
    """
    learned = list(trainable(model))
    for name, parameter in learned:
        if parameter.grad is None:
            raise Wrong(lacks.format(name))
    return torch.cat([parameter.grad.flatten() for _, parameter in learned])


@contextlib.contextmanager
def one_at_a_time(
    model: torch.nn.Module,
    waits: Callable[..., bool] = lambda x: True,
    fault: str = "",
) -> Iterator[list[int]]:
    """Yield the sizes of forward passes; refuse one before another's backward.

    Args:
        model: that is watched.
        waits: tells of an input whether its output will have a backward.
        fault: what to say of the second one, if not which forward it is.
    """
    sizes, waiting = [], set()

    def before(module: torch.nn.Module, inputs: tuple) -> None:
        if waiting:
            raise Wrong(
                fault
                or f"""forward number {len(sizes) + 1} comes before the backward of
                number {min(waiting)}: the activations of both are in memory."""
            )
        sizes.append(len(inputs[0]))

    def after(module: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        number = len(sizes)
        if waits(*inputs) and output.requires_grad:
            waiting.add(number)
            # The gradient of the output comes first in backward, so the hook marks its
            # start.
            output.register_hook(lambda _: waiting.discard(number))

    with model.register_forward_pre_hook(before), model.register_forward_hook(after):
        yield sizes


@contextlib.contextmanager
def undrawn(torchs: str = OTHERS, pythons: str = OTHERS) -> Iterator[None]:
    """Refuse to move the global generators, torch's and Python's.

    Args:
        torchs, pythons: how the sentence about each ends.
    """
    state, python = torch.get_rng_state(), random.getstate()
    yield
    if not torch.equal(torch.get_rng_state(), state):
        raise Wrong(f"it moved torch's global generator{torchs}")
    if random.getstate() != python:
        raise Wrong(f"it moved Python's global generator{pythons}")


class Work:
    """Wrap a work that ``async_op=True`` returned; remember whether anybody waited."""

    def __init__(self, work: dist.Work) -> None:
        self.work, self.waited = work, False

    def __getattr__(self, name: str) -> Any:
        if name in ("wait", "get_future", "is_completed"):
            self.waited = True
        return getattr(self.work, name)


class Buckets:
    """Send buckets of gradients, one after the other, and write down what happens.

    A check derives from it what stands in for ``dist.all_reduce``.

    Attributes:
        sizes: how many numbers each bucket has.
        works: of the buckets that have left in this step.
        events: what came in this step: "gradient", or the number of a bucket that left.
    """

    def __init__(self, sizes: list[int], weights: Iterable[torch.nn.Parameter]) -> None:
        self.sizes, self.works, self.events = sizes, [], []
        for weight in weights:
            weight.register_post_accumulate_grad_hook(self._come)

    def _come(self, weight: torch.nn.Parameter) -> None:
        self.events.append("gradient")

    def begin(self) -> None:
        """Forget the step before."""
        self.works.clear()
        self.events.clear()

    def send(self, flat: torch.Tensor, *args: Any, **kwargs: Any) -> Work:
        """Start the all_reduce of the next bucket, and return its work."""
        number, size = len(self.works), flat.numel()
        if size != self.sizes[number]:
            raise Wrong(f"""all_reduce number {number + 1} of this step has {size}
                numbers on rank {dist.get_rank()}; the buckets have {self.sizes}, and
                leave in this order on all ranks.""")
        self.events.append(number)
        self.works.append(Work(_all_reduce(flat, *args, async_op=True, **kwargs)))
        return self.works[-1]

    def num_gradients(self, bucket: int | None = None) -> int:
        """Count the gradients that came in this step, or before a bucket left."""
        end = None if bucket is None else self.events.index(bucket)
        return self.events[:end].count("gradient")

    def num_idle(self) -> int:
        """Count the works for which nobody waited."""
        return sum(not work.waited for work in self.works)
