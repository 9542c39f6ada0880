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

from allranks.rehearse.sharding import sharded, units
from allranks.rehearse.wrapped import of_ddp, of_fsdp

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
        self.num_steps = self.num_backwards = 0
        self.stepped: weakref.WeakSet[Any] = weakref.WeakSet()  # in the last step
        self.digests: dict[int, float] = {}
        self.due: Callable[[], float] | None = None  # the next digest
        self.data_parallel = self.wrapped = False
        self.ddp: list[dict[str, Any]] = []
        self.fsdp: list[dict[str, Any]] = []

    def watch(self) -> None:
        """Follow what is made and called from now on."""
        _after(DistributedDataParallel, "__init__", self.wraps)
        _after(torch.optim.Optimizer, "__init__", self.made)
        _after(torch.autograd, "backward", lambda *_: self.after_backward())
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
        if self.due:
            self.digests[self.num_steps] = self.due()
            self.due = None
        if self.guards is not None:
            self.guards.after_backward()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the guard check what an optimizer is about to use."""
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
        self.num_steps += 1
        if not dist.is_initialized() or dist.get_world_size() < 2:
            return
        if self.num_steps & (self.num_steps - 1) == 0:
            self.look()
            self.ddp = [of_ddp(model) for model in tuple(self.wrappers)]
            self.fsdp = [of_fsdp(root) for root in units()]

    def look(self) -> None:
        """Find the models that DDP keeps equal; the sum of their parameters is due."""
        from allranks.guard.wrappers import strange  # late, as the guard itself

        models, size = tuple(self.modules), dist.get_world_size()
        wide = [m for m in tuple(self.wrappers) if m.process_group.size() == size]
        self.data_parallel = bool(wide) or any(sharded(m) for m in models)
        wrappers = [m for m in wide if not strange(m)]  # a hook may keep them apart
        self.wrapped = bool(wrappers)
        inner = [getattr(p, "_inner", None) for m in wrappers for p in m.parameters()]
        if not inner or any(x is None for x in inner):
            return  # or on the host
        self.due = lambda: sum(float(x.detach().double().sum()) for x in inner)

    def facts(self) -> dict[str, Any]:
        """Return what a record has of it."""
        nothing = NOTHING if self.guard else None
        return {
            "steps": self.num_steps,
            "backwards": self.num_backwards,
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
