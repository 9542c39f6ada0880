"""What trains in a process: its models in DDP and FSDP, its optimizers, its steps.

Each model is described, with what has to be sent for it. After steps 1, 2, 4, 8, ...
parameters of models in DDP are summed up, and before these steps the gradients and
weights of what nothing wraps. The laws compare the sums.
"""

import functools
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _composable_state
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from allranks.rehearse import lines
from allranks.rehearse.records import (
    Bucket,
    DdpModel,
    FsdpModel,
    GuardNotes,
    ParameterSums,
)

if TYPE_CHECKING:
    from allranks.rehearse.guarding import Guards

FSDP = "torch.distributed.fsdp"  # which takes a while to import, so only scripts do it
INDICES = "rebuilt_per_bucket_param_indices"  # as DDP logs them: "3 2, 1 0"


class Replicas:
    """Follows DDP's models, all optimizers, and backward, from ``watch`` on.

    Args:
        modules: all modules that hold something.
        guard: whether ``allranks.guard`` runs inside.
        patience_s: how long it waits for a rank that does not come to a check.
        alone: whether nothing can be compared, as in a dry run.
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        guard: bool,
        patience_s: float,
        alone: bool = False,
    ) -> None:
        self.alone = alone
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
        after(DistributedDataParallel, "__init__", self.add_ddp_model)
        after(torch.optim.Optimizer, "__init__", self.add_optimizer)
        after(torch.autograd, "backward", lambda *_: self.after_backward())
        after(torch.amp.GradScaler, "step", lambda *_: self.after_scaler_step())
        for owner in torch.optim.Optimizer, nn.Module:
            after(owner, "zero_grad", lambda *_: self.after_zero_grad())
        register_optimizer_step_pre_hook(lambda opt, *_: self.before_step(opt))
        register_optimizer_step_post_hook(lambda opt, *_: self.after_step(opt))

    def add_ddp_model(self, model: nn.Module, *_: Any) -> None:
        """Know a model in DDP."""
        self.ddp_models[model] = None

    def add_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Know an optimizer."""
        self.optimizers[optimizer] = None

    def wrapped_models(self) -> list[nn.Module]:
        """Return the models that DDP or FSDP2 trains, each rank with its own data."""
        return [*self.ddp_models, *filter(sharded, fsdp_roots())]

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

            self.guards = Guards(self.wrapped_models, self.optimizers, self.patience_s)
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
        buffers = [] if self.alone else sent_buffers(model)
        sums = [total(getattr(b, "_inner", b)) for b in buffers]
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
        if not self.alone and inner and all(tensor is not None for tensor in inner):
            self.next_digest = lambda: sum(map(total, inner))

    def sum_unwrapped(self, optimizer: torch.optim.Optimizer) -> None:
        """Sum up gradients and weights of an optimizer that holds no wrapped model's.

        If the gradients are equal on all ranks, the program has averaged them by hand.
        """
        if self.alone or not _several_ranks():
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


def after(owner: Any, name: str, then: Callable[..., Any]) -> None:
    """Call a function each time that another one has returned, with its arguments."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        then(*args)
        return result

    setattr(owner, name, called)


def sharded(module: Any) -> bool:
    """Tell whether FSDP shards a module over all ranks, each with data of its own."""
    fsdp = sys.modules.get(FSDP)
    if fsdp is None:
        return False
    if isinstance(module, fsdp.FullyShardedDataParallel):
        return dist.get_world_size(module.process_group) == dist.get_world_size()
    if not isinstance(module, fsdp.FSDPModule):
        return False
    # In two dimensions, as (replicate, shard), parts of a mesh may share their data.
    meshes = [getattr(p, "device_mesh", None) for p in module.parameters()]
    return any(m.ndim == 1 and m.size() == dist.get_world_size() for m in meshes if m)


def fsdp_roots() -> list[nn.Module]:
    """Return the roots of all models that ``fully_shard`` was called on."""
    known = tuple(getattr(_composable_state, "_module_state_mapping", ()))
    known = known if FSDP in sys.modules else ()
    modules = [m for m in known if isinstance(m, sys.modules[FSDP].FSDPModule)]
    inside = {id(part) for m in modules for part in m.modules() if part is not m}
    return [module for module in modules if id(module) not in inside]


def describe_ddp(model: nn.Module) -> DdpModel:
    """Describe the gradients that DDP averages, and the buffers that it sends."""
    names = {id(p): name for name, p in model.module.named_parameters()}
    parameters, _ = model._build_params_for_reducer()
    logged = model._get_ddp_logging_data().get(INDICES, "")
    buckets = []
    for text in filter(None, logged.split(",")):
        inside = [parameters[int(index)] for index in text.split()]
        first, last = (names.get(id(p), "") for p in (inside[0], inside[-1]))
        num_bytes = sum(p.nbytes for p in inside)
        buckets.append(Bucket(num_bytes, len(inside), first, last))
    return DdpModel(
        num_bytes=sum(p.nbytes for p in parameters),
        num_parameters=len(parameters),
        group=dist.get_process_group_ranks(model.process_group),
        buckets=buckets,
        buffer_bytes=sum(b.nbytes for b in sent_buffers(model)),
    )


def sent_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the buffers that DDP sends in each forward pass."""
    return getattr(model, "modules_buffers", []) if model.broadcast_buffers else []


def total(tensor: torch.Tensor) -> float:
    """Return the sum of a tensor's numbers, of complex ones with both parts."""
    tensor = tensor.detach().resolve_conj()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return float(tensor.double().sum())


def describe_fsdp(root: nn.Module) -> FsdpModel:
    """Describe what FSDP2 gathers for a model."""
    from torch.distributed.tensor import DTensor  # a script with FSDP2 has imported it

    from allranks.guard.wrappers import groups, units

    # Forward reshards all but the root, by default, so backward gathers them again.
    regathered = [
        fsdp_parameter.sharded_param
        for group in groups(units(root))
        if getattr(group, "_reshard_after_forward", True)
        for fsdp_parameter in getattr(group, "fsdp_params", [])
    ]
    parameters = [p for p in root.parameters() if isinstance(p, DTensor)]
    mesh = parameters[0].device_mesh if parameters else None
    return FsdpModel(
        num_bytes=_unsharded_bytes(parameters),
        num_parameters=len(parameters),
        trained_bytes=_unsharded_bytes([p for p in parameters if p.requires_grad]),
        regathered_bytes=_unsharded_bytes(regathered),
        group=mesh.mesh.flatten().tolist() if mesh is not None else [],
    )


def _unsharded_bytes(parameters: list[torch.Tensor]) -> int:
    """Return the bytes of whole parameters; ``nbytes`` would be those of a shard."""
    return sum(p.numel() * p.element_size() for p in parameters)
