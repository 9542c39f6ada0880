"""Counts a process's backward passes and steps, and compares its replicas in them.

After steps 1, 2, 4, 8, ... parameters of models in DDP are summed up, and before these
steps the gradients and weights of what nothing wraps. The laws compare the sums.
"""

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
from allranks.rehearse.data_parallel import (
    describe_ddp,
    describe_fsdp,
    fsdp_roots,
    sent_buffers,
    sharded,
    total,
)
from allranks.rehearse.records import DdpModel, FsdpModel, GuardNotes, ParameterSums

if TYPE_CHECKING:
    from allranks.rehearse.guarding import Guards


class Replicas:
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
        # In the order in which they were made, which is that of all ranks.
        self.ddp_models: weakref.WeakKeyDictionary[nn.Module, None]
        self.ddp_models = weakref.WeakKeyDictionary()
        self.optimizers: weakref.WeakKeyDictionary[Any, None]
        self.optimizers = weakref.WeakKeyDictionary()
        self.guard, self.patience_s = guard, patience_s
        self.guards: Guards | None = None  # made when there is something to compare
        self.forget()

    def forget(self) -> None:
        """Begin anew, as a process does that was forked."""
        self.num_steps = self.num_backwards = self.num_scaler_steps = 0
        self.zeroed = True  # whether the next backward adds to no earlier one
        self.num_accumulations = 0  # backward passes that did
        self.joined = False  # whether ranks may have made unequal numbers of steps
        self.unwrapped_sums: list[ParameterSums] = []
        self.stepped: weakref.WeakSet[Any] = weakref.WeakSet()  # in the last step
        self.digests: dict[int, float] = {}
        self.next_digest: Callable[[], float] | None = None
        self.data_parallel = self.replicated = False
        # By model: a sum of each of its buffers when it was first described.
        self.buffer_sums: weakref.WeakKeyDictionary[nn.Module, list[float]]
        self.buffer_sums = weakref.WeakKeyDictionary()
        self.changed: set[int] = set()  # models whose buffers are no constants
        self.ddp: list[DdpModel] = []
        self.fsdp: list[FsdpModel] = []

    def watch(self) -> None:
        """Follow what is made and called from now on."""
        _after(DistributedDataParallel, "__init__", self.add_ddp_model)
        _after(torch.optim.Optimizer, "__init__", self.add_optimizer)
        _after(torch.autograd, "backward", lambda *_: self.after_backward())
        _after(torch.amp.GradScaler, "step", lambda *_: self.after_scaler_step())
        for owner in torch.optim.Optimizer, nn.Module:
            _after(owner, "zero_grad", lambda *_: self.after_zero_grad())
        register_optimizer_step_pre_hook(lambda opt, *_: self.before_step(opt))
        register_optimizer_step_post_hook(lambda opt, *_: self.after_step(opt))

    def add_ddp_model(self, model: nn.Module, *_: Any) -> None:
        """Know a model in DDP."""
        self.ddp_models[model] = None

    def add_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Know an optimizer."""
        self.optimizers[optimizer] = None

    def after_backward(self) -> None:
        """Count a backward pass; by now every rank has what the last step changed."""
        self.num_backwards += 1
        self.num_accumulations += not self.zeroed
        self.zeroed = False
        if self.next_digest:
            self.digests[self.num_steps] = self.next_digest()
            self.next_digest = None
        if self.guards is not None:
            self.guards.after_backward()

    def after_zero_grad(self) -> None:
        """Take note that the next gradients are added to none."""
        self.zeroed = True

    def after_scaler_step(self) -> None:
        """Count what a GradScaler makes of a step, which may be none."""
        self.num_scaler_steps, self.zeroed = self.num_scaler_steps + 1, True

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the guard check what an optimizer is about to use."""
        self.optimizers.setdefault(optimizer)  # a copied one was never made
        if (self.num_steps + 1) & self.num_steps == 0:  # the next is 1, 2, 4, 8, ...
            self.sum_unwrapped(optimizer)
        if not (self.guard and _several_ranks()):
            return
        if self.guards is None:
            from allranks.rehearse.guarding import Guards  # takes a second

            self.guards = Guards(self.ddp_models, self.optimizers, self.patience_s)
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
        self.num_steps, self.zeroed = self.num_steps + 1, True
        if _several_ranks() and self.num_steps & (self.num_steps - 1) == 0:
            self.plan_digest()
            self.ddp = [self.describe(model) for model in tuple(self.ddp_models)]
            self.fsdp = [describe_fsdp(root) for root in fsdp_roots()]

    def describe(self, model: nn.Module) -> DdpModel:
        """Describe a model in DDP, and whether its buffers were always the same."""
        described = describe_ddp(model)
        sums = [total(getattr(b, "_inner", b)) for b in sent_buffers(model)]
        if self.buffer_sums.setdefault(model, sums) != sums:
            self.changed.add(id(model))
        described.constant_buffers = id(model) not in self.changed
        return described

    def plan_digest(self) -> None:
        """Find the models that DDP keeps equal; the sum of their parameters is due."""
        from allranks.guard import wrappers  # late, as the guard

        modules, world_size = tuple(self.modules), dist.get_world_size()
        spanning = [
            model
            for model in tuple(self.ddp_models)
            if model.process_group.size() == world_size
        ]
        self.data_parallel = bool(spanning) or any(map(sharded, modules))
        # A communication hook may keep replicas apart.
        equal = [m for m in spanning if not wrappers.other_reduction(m)]
        self.joined |= any(map(wrappers.joining, spanning))
        if self.joined:  # step 2 of one rank is another moment than that of the next
            equal = []
            self.digests.clear()
        self.replicated = bool(equal)
        # The host's tensors below the virtual GPU's: summing these up costs no time of
        # the GPU, and counts as no copy.
        inner = [getattr(p, "_inner", None) for m in equal for p in m.parameters()]
        if inner and all(tensor is not None for tensor in inner):
            self.next_digest = lambda: sum(map(total, inner))

    def sum_unwrapped(self, optimizer: torch.optim.Optimizer) -> None:
        """Sum up gradients and weights of an optimizer that holds no wrapped model's.

        If the gradients are equal on all ranks, the program has averaged them by hand.
        """
        if not _several_ranks():
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        fsdp_models = *fsdp_roots(), *filter(sharded, tuple(self.modules))
        models = *self.ddp_models, *fsdp_models
        wrapped = {id(p) for model in models for p in model.parameters()}
        if any(id(p) in wrapped for p in parameters):
            return
        pairs = [
            (getattr(p, "_inner", None), getattr(p.grad, "_inner", None))
            for p in parameters
            if p.grad is not None
        ]
        if not pairs or any(x is None or x.is_sparse for pair in pairs for x in pair):
            return  # on the host, or of another kind
        weights, gradients = (
            sum(map(total, side)) for side in zip(*pairs, strict=True)
        )
        number, line = [*self.optimizers].index(optimizer), lines.place().line
        self.unwrapped_sums.append(
            ParameterSums(self.num_steps, number, len(pairs), gradients, weights, line)
        )

    def guard_notes(self) -> GuardNotes | None:
        """Return what the guard has found so far; None if it was left out."""
        if self.guards is not None:
            return self.guards.notes
        return GuardNotes() if self.guard else None


def _several_ranks() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


def _after(owner: Any, name: str, then: Callable[..., Any]) -> None:
    """Call a function each time that another one has returned, with its arguments."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        then(*args)
        return result

    setattr(owner, name, called)
