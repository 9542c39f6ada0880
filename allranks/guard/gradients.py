"""Invariant: the synchronised gradient is the mean of the ranks' local gradients."""

from functools import partial

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from .digests import DTensor, dense, local, sketch
from .exchange import Exchange
from .verdict import judge

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # a torch without FSDP2
    FSDPModule = ()


def sharding(parameter: torch.Tensor) -> tuple[int, int, int] | None:
    """(number of shards, own shard, dim) of a parameter; None if it is cut twice."""
    if not isinstance(parameter, DTensor):
        return 1, 0, 0
    cut = [i for i, p in enumerate(parameter.placements) if not p.is_replicate()]
    if not cut:
        return 1, 0, 0
    placement, mesh = parameter.placements[cut[0]], parameter.device_mesh
    if len(cut) > 1 or type(placement).__name__ != "Shard":
        return None
    return mesh.size(cut[0]), mesh.get_local_rank(cut[0]), placement.dim


class LocalGradients:
    """Takes a sketch of each local gradient as backward makes it.

    DDP: a hook where the parameter's gradient is accumulated, called before DDP
    averages. FSDP2: the same for the unsharded parameter, which exists from the
    module's forward on. Several backward passes add up; what was zeroed in between (a
    GAN's other loss, the first pass of SAM) does not count. No gradient is kept.
    """

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter]):
        self.model, self.armed = model, False
        self.handles: list = []
        self.nodes: list = []
        self.sketches: dict[str, torch.Tensor] = {}
        self.units = [
            (prefix, m)
            for prefix, m in model.named_modules()
            if FSDPModule and isinstance(m, FSDPModule)
        ]
        self.inside = {id(p) for _, unit in self.units for p in _managed(unit)}
        self.cut = {name: sharding(p) for name, p in parameters.items()}
        self.parameters = {
            name: p
            for name, p in parameters.items()
            if self.cut[name] and (id(p) in self.inside or not isinstance(p, DTensor))
        }

    def arm(self) -> None:
        """Set the hooks; what they saw before is forgotten."""
        self.disarm()
        self.armed, self.sketches, seen = True, {}, {}
        for name, parameter in self.parameters.items():
            if parameter.requires_grad and id(parameter) not in self.inside:
                self._hook(name, parameter)
        for prefix, unit in self.units:
            enter = partial(self._enter, prefix, seen)
            self.handles.append(unit.register_forward_pre_hook(enter))

    def disarm(self) -> None:
        """Take every hook away."""
        for handle in self.handles:
            handle.remove()
        self.handles, self.nodes, self.armed = [], [], False

    def _hook(self, name: str, parameter: torch.Tensor) -> None:
        # Not register_hook: autograd.grad would call that too, and accumulates nothing.
        node = get_gradient_edge(parameter).node
        add = partial(self._add, name, parameter)
        self.handles.append(node.register_prehook(add))
        self.nodes.append(node)  # nobody else may keep it

    @torch.compiler.disable
    def _enter(self, prefix: str, seen: dict, unit: nn.Module, _args) -> None:
        """Inside of a unit's forward its parameters are whole: hook those."""
        for name, whole in unit.named_parameters(prefix):
            sharded = self.parameters.get(name)
            if sharded is None or whole is sharded or not whole.requires_grad:
                continue
            if id(whole) not in seen:
                seen[id(whole)] = whole
                self._hook(name, whole)

    def _add(self, name: str, whole: torch.Tensor, incoming: tuple) -> None:
        """Add a gradient's sketches, one for each shard: (shards, 3)."""
        (gradient,) = incoming
        if gradient is None:
            return
        count, _, dim = self.cut[name]
        gradient = dense(local(gradient))
        if count == 1:
            found = sketch(gradient.reshape(1, -1))
        elif dim == 0 and gradient.shape[0] % count == 0:
            found = sketch(gradient.reshape(count, -1))
        else:
            pieces = list(gradient.chunk(count, dim))
            pieces += [gradient.new_zeros(0)] * (count - len(pieces))
            found = torch.cat([sketch(piece.reshape(1, -1)) for piece in pieces])
        before = self._before(name, whole)
        self.sketches[name] = found if before is None else before + found

    def _before(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        """What this gradient is added to: nothing if .grad was zeroed since."""
        before, held = self.sketches.get(name), self.parameters[name].grad
        if before is None:
            return None
        if whole is not self.parameters[name]:  # FSDP2
            if held is None and whole.grad is None:
                # Zeroed, or kept out of sight until it is reduced: nobody can tell.
                return torch.full_like(before, torch.nan)
            return before
        if held is None:
            return None
        if held.layout != torch.strided:
            return before
        return torch.where(held.detach().any(), before, torch.zeros_like(before))


def _managed(unit: nn.Module) -> list:
    """The parameters that an FSDP2 unit gathers: those that are DTensors."""
    return [p for p in unit.parameters() if isinstance(p, DTensor)]


def check(
    exchange: Exchange,
    where: str,
    seen: LocalGradients,
    factor: float,
    scaled: bool,
    tolerance: float,
) -> None:
    """Raise unless each gradient is ``factor`` times the mean of the local ones.

    All gradients may be smaller by one common number, as clip_grad_norm_ leaves them.

    Args:
        factor: 1, or 1 / scale once a GradScaler has unscaled.
        scaled: a GradScaler's factor is still in them, so none may be clipped.
        tolerance: relative to the norm of the local gradients.
    """
    names_, zero = list(seen.parameters), torch.zeros(1, device="cpu")
    locals_, own = [], []
    for name in names_:
        count, index, _ = seen.cut[name]
        grad = seen.parameters[name].grad
        mine = seen.sketches.get(name)
        has = torch.tensor([grad is not None, mine is not None], device="cpu")
        mine = zero.expand(count, 3) if mine is None else mine.cpu()
        synced = zero.expand(1, 3) if grad is None else sketch(_flat(grad)).cpu()
        locals_.append(mine.reshape(-1))
        own.append(torch.cat([synced[0], mine[index], has, zero + index]))
    if not names_:
        return
    mean = exchange.mean(where, torch.cat(locals_))
    table = exchange.floats(where, torch.stack(own))  # (W, P, 9)
    found = []
    offset = 0
    for place, name in enumerate(names_):
        count = seen.cut[name][0]
        expected = mean[offset : offset + 3 * count].view(count, 3)
        offset += 3 * count
        rows = table[:, place]  # (W, 9): synced 3, local 3, has grad, has local, shard
        if not rows[:, 7].any() or not rows[:, 6].all() or not rows.isfinite().all():
            continue
        at = rows[:, 8].long()
        scale = expected[at, 2].sqrt() * max(exchange.size**-0.5, 0.2)
        found.append((name, rows, expected[at, :2], scale[:, None]))
    judge(exchange, where, found, factor, scaled, tolerance)


def _flat(gradient: torch.Tensor) -> torch.Tensor:
    return dense(local(gradient)).reshape(1, -1)
