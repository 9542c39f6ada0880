"""What a process trains: models, optimizers and steps, and whether replicas agree."""

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from allranks.rehearse import lines
from allranks.rehearse.sharding import sharded, units
from allranks.rehearse.wrapped import of_ddp, of_fsdp, total

if TYPE_CHECKING:
    from allranks.rehearse.guarding import Guards

NOTHING = {"models": [], "found": [], "remarks": [], "off": []}  # of a guard, so far


class Training:
    """Follows DDP's models, all optimizers, and backward, from ``watch`` on.

    Args:
        modules: all modules that hold something.
        guard: whether ``allranks.guard`` runs inside.
        patience_s: how long it waits for a rank that does not come to a check.
    """

    def __init__(
        self, modules: Iterable[nn.Module], guard: bool, patience_s: float
    ) -> None:
        self.modules = modules
        # in the order in which they were made, which is that of all ranks
        self.wrappers: weakref.WeakKeyDictionary[nn.Module, None] = (
            weakref.WeakKeyDictionary()
        )
        self.optimizers: weakref.WeakKeyDictionary[Any, None] = (
            weakref.WeakKeyDictionary()
        )
        self.guard, self.patience_s = guard, patience_s
        self.guards: Guards | None = None  # made when there is something to compare
        self.forget()

    def forget(self) -> None:
        """Begin anew, as a process does that was forked."""
        self.num_steps = self.num_backwards = self.num_scaled = 0
        self.fresh = True  # whether the next backward adds to no earlier one
        self.num_added = 0  # backward passes that did
        self.joined = False  # whether ranks may have made unequal numbers of steps
        self.own: list[list[Any]] = []  # sums of what nothing wraps
        self.stepped: weakref.WeakSet[Any] = weakref.WeakSet()  # in the last step
        self.digests: dict[int, float] = {}
        self.due: Callable[[], float] | None = None  # the next digest
        self.data_parallel = self.wrapped = False
        self.sums: weakref.WeakKeyDictionary[nn.Module, list[float]] = (
            weakref.WeakKeyDictionary()  # of buffers, at the first look
        )
        self.changed: set[int] = set()  # models whose buffers are no constants
        self.ddp: list[dict[str, Any]] = []
        self.fsdp: list[dict[str, Any]] = []

    def watch(self) -> None:
        """Follow what is made and called from now on."""
        _after(DistributedDataParallel, "__init__", self.wraps)
        _after(torch.optim.Optimizer, "__init__", self.made)
        _after(torch.autograd, "backward", lambda *_: self.after_backward())
        _after(torch.amp.GradScaler, "step", lambda *_: self.scaled())
        for owner in torch.optim.Optimizer, nn.Module:
            _after(owner, "zero_grad", lambda *_: self.zeroed())
        register_optimizer_step_pre_hook(lambda opt, *_: self.before_step(opt))
        register_optimizer_step_post_hook(lambda opt, *_: self.after_step(opt))

    def wraps(self, model: nn.Module, *_: Any) -> None:
        """Know a model in DDP."""
        self.wrappers[model] = None

    def made(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Know an optimizer."""
        self.optimizers[optimizer] = None

    def after_backward(self) -> None:
        """Count a backward pass; by now every rank has what the last step changed."""
        self.num_backwards += 1
        self.num_added += not self.fresh
        self.fresh = False
        if self.due:
            self.digests[self.num_steps] = self.due()
            self.due = None
        if self.guards is not None:
            self.guards.after_backward()

    def zeroed(self) -> None:
        """Take note that the next gradients are added to none."""
        self.fresh = True

    def scaled(self) -> None:
        """Count what a GradScaler makes of a step, which may be none."""
        self.num_scaled, self.fresh = self.num_scaled + 1, True

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the guard check what an optimizer is about to use."""
        self.optimizers.setdefault(optimizer)  # a copied one was never made
        if (self.num_steps + 1) & self.num_steps == 0:
            self.compare_own(optimizer)
        if not (self.guard and dist.is_initialized() and dist.get_world_size() > 1):
            return
        if self.guards is None:
            from allranks.rehearse.guarding import Guards  # takes a second

            self.guards = Guards(self.wrappers, self.optimizers, self.patience_s)
        self.guards.before_step(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Count a step; compare replicas after steps 1, 2, 4, 8, ...

        It is one step if several optimizers make it, until one of them steps again. The
        comparison waits for the next backward, as an optimizer that is sharded sends
        what it has changed after the step.
        """
        if optimizer in self.stepped:
            self.stepped.clear()
        self.stepped.add(optimizer)
        if len(self.stepped) > 1:
            return
        self.num_steps, self.fresh = self.num_steps + 1, True
        if not dist.is_initialized() or dist.get_world_size() < 2:
            return
        if self.num_steps & (self.num_steps - 1) == 0:
            self.look()
            self.ddp = [self.describe(model) for model in tuple(self.wrappers)]
            self.fsdp = [of_fsdp(root) for root in units()]

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """Describe a model in DDP, and whether its buffers were always the same."""
        about = of_ddp(model)
        before = self.sums.setdefault(model, about["sums"])
        self.changed |= {id(model)} if before != about.pop("sums") else set()
        return about | {"constant": id(model) not in self.changed}

    def look(self) -> None:
        """Find the models that DDP keeps equal; the sum of their parameters is due."""
        from allranks.guard.wrappers import joining, strange  # late, as the guard

        models, size = tuple(self.modules), dist.get_world_size()
        wide = [m for m in tuple(self.wrappers) if m.process_group.size() == size]
        self.data_parallel = bool(wide) or any(sharded(m) for m in models)
        wrappers = [m for m in wide if not strange(m)]  # a hook may keep them apart
        self.joined |= any(joining(m) for m in wide)
        if self.joined:  # step 2 of one rank is another moment than that of the next
            wrappers = []
            self.digests.clear()
        self.wrapped = bool(wrappers)
        inner = [getattr(p, "_inner", None) for m in wrappers for p in m.parameters()]
        if not inner or any(x is None for x in inner):
            return  # or on the host
        self.due = lambda: sum(map(total, inner))

    def compare_own(self, optimizer: torch.optim.Optimizer) -> None:
        """Sum up gradients and weights of an optimizer that holds no wrapped model's.

        If the gradients are equal on all ranks, the program has averaged them by hand.
        """
        if not dist.is_initialized() or dist.get_world_size() < 2:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        models = (*self.wrappers, *units(), *filter(sharded, tuple(self.modules)))
        wrapped = {id(p) for model in models for p in model.parameters()}
        found = [(p, p.grad) for p in parameters if p.grad is not None]
        inner = [[getattr(x, "_inner", None) for x in pair] for pair in found]
        if not inner or any(id(p) in wrapped for p in parameters):
            return
        if any(x is None or x.is_sparse for pair in inner for x in pair):
            return  # on the host, or of another kind
        weights, gradients = (
            sum(map(total, side)) for side in zip(*inner, strict=True)
        )
        number = [*self.optimizers].index(optimizer)
        sums = [len(inner), gradients, weights]
        self.own.append([[self.num_steps, number], sums, lines.place()[0]])

    def facts(self) -> dict[str, Any]:
        """Return what a record has of it."""
        nothing = NOTHING if self.guard else None
        return {
            "steps": self.num_steps,
            "backwards": self.num_backwards,
            "added": self.num_added,
            "scaled": self.num_scaled,
            "own": self.own,
            "wrapped": self.wrapped,
            "data_parallel": self.data_parallel,
            "digests": self.digests,
            "ddp": self.ddp,
            "fsdp": self.fsdp,
            "guard": self.guards.facts() if self.guards else nothing,
        }


def _after(owner: Any, name: str, tell: Callable[..., Any]) -> None:
    """Call a function each time that another one has returned."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        tell(*args)
        return made

    setattr(owner, name, called)
