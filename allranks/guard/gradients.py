"""Invariant: the synchronised gradient is the mean of the ranks' local gradients."""

from functools import partial

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from .digests import DTensor, dense, local
from .exchange import Exchange, GuardError
from .sharded import Kept, managed, sharding, units
from .sketches import flat, sketch
from .verdict import emptied


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
        self.units = units(model)
        self.kept = Kept([])
        self.inside = {id(p) for _, unit in self.units for p in managed(unit)}
        self.cut = {name: sharding(p) for name, p in parameters.items()}
        self.parameters = {
            name: p
            for name, p in parameters.items()
            if self.cut[name] and not p.is_meta
            if id(p) in self.inside or not isinstance(p, DTensor)
        }

    def arm(self) -> None:
        """Set the hooks; what they saw before is forgotten."""
        self.disarm()
        self.armed, self.sketches, seen = True, {}, {}
        self.kept = Kept(self.units)
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
            hidden = self.kept.hidden(self.parameters[name], whole)
            if hidden:
                return before
            if held is None:  # zeroed; or nobody can tell
                return None if hidden is False else torch.full_like(before, torch.nan)
            mine = local(held)
            if not mine.numel():
                return before
            # A shard of zeros: the whole was zeroed, or only this part is 0.
            unknown = torch.full_like(before, torch.nan)
            return torch.where(mine.any().to(before.device), before, unknown)
        if held is None:
            return None
        if held.layout != torch.strided:
            return before
        return torch.where(held.detach().any(), before, torch.zeros_like(before))

    def reached(self) -> bool:
        """Whether there is any gradient, or was one since ``arm``."""
        if self.sketches or not self.parameters:
            return True
        found = self.parameters.values()
        return any(p.grad is not None or not p.requires_grad for p in found)

    def taken(self) -> bool:
        """Whether a hook takes gradients as they are made, to save memory."""
        found = self.parameters.values()
        return any(getattr(p, "_post_accumulate_grad_hooks", None) for p in found)

    def look(self) -> list[torch.Tensor]:
        """What a check compares, still on the devices.

        For each parameter its local sketches, (shards, 3), and the synchronised (1, 3).
        """
        found, zero = [], torch.zeros(1, device="cpu")
        for name, parameter in self.parameters.items():
            mine, grad = self.sketches.get(name), parameter.grad
            found += [
                zero.expand(self.cut[name][0], 3) if mine is None else mine,
                zero.expand(1, 3) if grad is None else sketch(flat(grad)),
            ]
        return found


def table(
    exchange: Exchange,
    where: str,
    seen: LocalGradients,
    sketches: list[torch.Tensor],
) -> list[tuple]:
    """Return what ``verdict.judge`` takes: gradients, and the mean of the local ones.

    Args:
        sketches: what ``look`` found, on the CPU.
    """
    names_, locals_, own = list(seen.parameters), [], []
    for place, name in enumerate(names_):
        index, grad = seen.cut[name][1], seen.parameters[name].grad
        mine, synced = sketches[2 * place : 2 * place + 2]
        has = [float(grad is not None), float(name in seen.sketches), float(index)]
        locals_.append(mine.reshape(-1))
        own.append(torch.cat([synced[0], mine[index], torch.tensor(has, device="cpu")]))
    if not names_:
        return []
    mean = exchange.mean(where, torch.cat(locals_))
    told = exchange.floats(where, torch.stack(own))  # (W, P, 9)
    if emptied(told) and not seen.units and not seen.taken():
        raise GuardError(
            f"{where}: backward made gradients, and .grad is empty or zero on all "
            "ranks: step() was called after zero_grad(). Call it between backward() "
            "and optimizer.step(), before the gradients are zeroed."
        )
    found = []
    offset = 0
    for place, name in enumerate(names_):
        count = seen.cut[name][0]
        expected = mean[offset : offset + 3 * count].view(count, 3)
        offset += 3 * count
        rows = told[:, place]  # (W, 9): synced 3, local 3, has grad, has local, shard
        if not rows[:, 7].any() or not rows[:, 6].all() or not rows.isfinite().all():
            continue
        at = rows[:, 8].long()
        scale = expected[at, 2].sqrt() * max(exchange.size**-0.5, 0.2)
        found.append((name, rows, expected[at, :2], scale[:, None]))
    return found
