"""The classes of this book and of PyTorch, as the tests of CS336 call them.

In a copy of stanford-cs336/assignment2-systems, this file takes the place of
tests/adapters.py. The variable SUBJECT names the class that is tested.
"""

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

OWN_DTYPE = "ZeRO-3 by hand computes in the dtype of its weights"


def subject() -> Callable:
    """Return what SUBJECT names: ``ch8_flat.DDP`` is in scripts/ch8_flat.py."""
    module, _, name = os.environ["SUBJECT"].rpartition(".")
    return getattr(importlib.import_module(module), name)


def get_ddp(module: nn.Module) -> nn.Module:
    """Wrap a module in a DDP."""
    return subject()(module)


def ddp_on_after_backward(
    ddp_model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Average the gradients, unless this DDP has done so during backward."""
    if hasattr(ddp_model, "average"):
        ddp_model.average()


def get_sharded_optimizer(
    params: Iterable[nn.Parameter], optimizer_cls: type, **kwargs: object
) -> "torch.optim.Optimizer | Sharded":
    """Return an optimizer of which each rank has a part of the state."""
    make = subject()
    if issubclass(make, torch.optim.Optimizer):
        return make(params, optimizer_class=optimizer_cls, **kwargs)
    return Sharded(make, [*params], partial(optimizer_cls, **kwargs))


class Sharded:
    """ZeRO-1 or 2 by hand: it takes a module, and the tests have a list."""

    def __init__(self, make: Callable, params: list, make_optimizer: Callable) -> None:
        self.net = nn.ParameterList(params)
        self.way = make(self.net, [[self.net]], make_optimizer)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.net.zero_grad()
        self.way.optimizer.zero_grad()

    def step(self) -> None:
        """Update this rank's part, and send it to all."""
        self.way.step()


def cut(net: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that the tests want sharded; all else is on each rank."""
    from cs336_basics.model import Embedding, Linear

    named = net.named_modules()
    return {n: m for n, m in named if isinstance(m, Linear | Embedding)}


class Wrapped(nn.Module):
    """A module of which fully_shard has cut some layers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    @property
    def module(self) -> nn.Module:
        """Return what has the parameters that the tests look at."""
        return self.net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the module."""
        return self.net(x)

    def rest(self) -> list[nn.Parameter]:
        """Return the parameters that are on each rank."""
        return [p for p in self.net.parameters() if not isinstance(p, DTensor)]

    def average(self) -> None:
        """Average the gradients that nobody else does."""
        for p in self.rest():
            dist.all_reduce(p.grad, dist.ReduceOp.AVG)

    def whole(self) -> dict[str, torch.Tensor]:
        """Return all parameters by their names."""
        named = {n: p.detach() for n, p in self.net.named_parameters()}
        parts = {n: p for n, p in named.items() if isinstance(p, DTensor)}
        return named | {n: p.full_tensor() for n, p in parts.items()}


class Zero3Wrapped(Wrapped):
    """A module of which ZeRO-3 by hand has cut some layers.

    Its parameters are what this rank keeps between steps, under the module's names.
    """

    def __init__(self, make: Callable, net: nn.Module) -> None:
        super().__init__(net)
        self.names = [*(layers := cut(net))]
        inside = nn.ModuleList(layers.values())
        self.way = make(inside, [[layer] for layer in inside], torch.optim.SGD)
        self.shards = {p: u.shard for u in self.way.units for p in u.params.values()}
        for p in self.rest():
            dist.broadcast(p.detach(), 0)

    @property
    def module(self) -> Self:
        """Return this: the module itself has no parameters between steps."""
        return self

    def named_modules(self, *args: object, **kwargs: object) -> Iterator:
        """Yield the module's own."""
        return self.net.named_modules(*args, **kwargs)

    def named_parameters(self, *args: object, **kwargs: object) -> Iterator:
        """Yield this rank's part of each layer that was cut, and all else whole."""
        seen = set()
        for name, p in self.net.named_parameters(*args, **kwargs):
            p = self.shards.get(p, p)
            if p not in seen:  # weight and bias of a layer are in one part
                yield name, p
            seen.add(p)

    def rest(self) -> list[nn.Parameter]:
        """Return the parameters that are on each rank."""
        return [p for p in self.net.parameters() if p not in self.shards]

    def average(self) -> None:
        """Average the gradients; those of the layers were, during backward."""
        self.way.average()
        super().average()

    def whole(self) -> dict[str, torch.Tensor]:
        """Return all parameters by their names."""
        found = {n: p.detach() for n, p in self.net.named_parameters()}
        for name, tensor in self.way.whole(grads=False).items():  # 0.weight
            number, _, last = name.partition(".")
            found[f"{self.names[int(number)]}.{last}"] = tensor
        return found


def get_fsdp(module: nn.Module, compute_dtype: torch.dtype | None = None) -> Wrapped:
    """Return a module of whose layers each rank keeps a part.

    Raises:
        NotImplementedError: if ours is to compute in another dtype.
    """
    make = subject()
    if make is not fully_shard:
        if compute_dtype:
            raise NotImplementedError(OWN_DTYPE)
        return Zero3Wrapped(make, module)
    for layer in cut(module).values():
        make(layer, mp_policy=MixedPrecisionPolicy(param_dtype=compute_dtype))
    return Wrapped(module)


def fsdp_on_after_backward(
    fsdp_model: Wrapped, optimizer: torch.optim.Optimizer
) -> None:
    """Average the gradients that are whole on each rank."""
    fsdp_model.average()


def fsdp_gather_full_params(fsdp_model: Wrapped) -> dict[str, torch.Tensor]:
    """Return all parameters as wholes."""
    return fsdp_model.whole()
