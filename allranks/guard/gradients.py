"""Invariant: the synchronised gradient is the mean of the ranks' local gradients."""

from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from allranks.guard.digests import DTensor, dense, local, sketch
from allranks.guard.exchange import Exchange, GuardError, names
from allranks.guard.wrappers import Unreduced, managed, sharding, units

BY_HAND = (
    "the program itself sums the gradients of all ranks, and does not divide. That is "
    "right if each rank divides its loss by the number of samples on all ranks. If by "
    "its own, divide the sum by the number of ranks."
)


DIVIDED = (
    "every gradient is {:.4g} times the mean of the ranks' local gradients, at two "
    "checks in a row: it is divided by the number of ranks once too often. DDP and "
    "FSDP have divided already."
)


class Compared(NamedTuple):
    """One gradient on all ``W`` ranks, and the mean of the local ones."""

    name: str
    rows: torch.Tensor  # (W, 9): synced 3, local 3, has grad, has local, shard
    mean: torch.Tensor  # (W, 2): of the local sketches, for each rank's shard
    scale: torch.Tensor  # (W, 1): how far off a sketch may be


class LocalGradients:
    """Takes a sketch of each local gradient as backward makes it.

    A hook is set where a parameter's gradient is accumulated, and it is called before
    DDP averages. Under FSDP2 it is set on the unsharded parameter, which exists from
    the module's forward on. Several backward passes add up, but what was zeroed in
    between (a GAN's other loss, the first pass of SAM) does not count. No gradient is
    kept.
    """

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        self.model, self.armed = model, False
        self.handles: list[RemovableHandle] = []
        self.nodes: list[Node] = []
        self.sketches: dict[str, torch.Tensor] = {}
        self.kept: list[torch.Tensor] | None = None  # of gradients as they were then
        self.passes: dict[str, int] = {}  # how often backward made each gradient
        self.units = units(model)
        self.unreduced = Unreduced()
        self.inside = {id(p) for _, unit in self.units for p in managed(unit)}
        self.shards = {name: sharding(p) for name, p in parameters.items()}
        self.parameters = {
            name: p
            for name, p in parameters.items()
            if self.shards[name] and not p.is_meta
            if id(p) in self.inside or not isinstance(p, DTensor)
        }

    def arm(self) -> None:
        """Set the hooks, and forget what they saw before."""
        self.disarm()
        self.armed, self.sketches, self.passes, seen = True, {}, {}, {}
        self.unreduced = Unreduced(self.units)
        for name, parameter in self.parameters.items():
            if parameter.requires_grad and id(parameter) not in self.inside:
                self._hook(name, parameter)
        for prefix, unit in self.units:
            enter = partial(self._enter, prefix, seen)
            self.handles.append(unit.register_forward_pre_hook(enter))

    def disarm(self) -> None:
        """Remove every hook."""
        for handle in self.handles:
            handle.remove()
        self.handles, self.nodes, self.armed, self.kept = [], [], False, None

    def _hook(self, name: str, parameter: torch.Tensor) -> None:
        # autograd.grad accumulates nothing, but would call what register_hook sets.
        node = get_gradient_edge(parameter).node
        add = partial(self._add, name, parameter)
        self.handles.append(node.register_prehook(add))
        self.nodes.append(node)  # perhaps the only reference to it

    @torch.compiler.disable
    def _enter(
        self, prefix: str, seen: dict[int, torch.Tensor], unit: nn.Module, _args: tuple
    ) -> None:
        """Set hooks on the unsharded parameters, which begin with a unit's forward."""
        for name, whole in unit.named_parameters(prefix):
            sharded = self.parameters.get(name)
            if sharded is None or whole is sharded or not whole.requires_grad:
                continue
            if id(whole) not in seen:
                seen[id(whole)] = whole
                self._hook(name, whole)

    def _add(
        self, name: str, whole: torch.Tensor, incoming: tuple[torch.Tensor | None]
    ) -> None:
        """Add a gradient's sketches, (shards, 3), to those of earlier passes."""
        (gradient,) = incoming
        if gradient is None:
            return
        self.passes[name] = self.passes.get(name, 0) + 1
        count, _, dim = self.shards[name]
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
        """Return the sketches that a gradient adds to; None if ``.grad`` was zeroed."""
        before, held = self.sketches.get(name), self.parameters[name].grad
        if before is None:
            return None
        if whole is not self.parameters[name]:  # FSDP2
            waits = self.unreduced.waits(self.parameters[name], whole)
            if waits:
                return before
            if held is None:  # it was zeroed, unless this torch does not tell
                return None if waits is False else torch.full_like(before, torch.nan)
            mine = local(held)
            if not mine.numel():
                return before
            # If the shard is all zeros, either the whole was zeroed, or only this part
            # of it happens to be 0.
            unknown = torch.full_like(before, torch.nan)
            return torch.where(mine.any().to(before.device), before, unknown)
        if held is None:
            return None
        if held.layout != torch.strided:
            return before
        return torch.where(local(held).any(), before, torch.zeros_like(before))

    def reached(self) -> bool:
        """Tell whether there is any gradient, or has been one since ``arm``."""
        if self.sketches or not self.parameters:
            return True
        found = self.parameters.values()
        return any(p.grad is not None or not p.requires_grad for p in found)

    def bypassed(self) -> bool:
        """Tell whether there is a gradient that backward did not accumulate."""
        found = self.parameters.items()
        return self.armed and any(
            p.requires_grad and p.grad is not None and name not in self.passes
            for name, p in found
            if id(p) not in self.inside
        )

    def taken(self) -> bool:
        """Tell whether a hook consumes gradients as they are made, to save memory."""
        found = self.parameters.values()
        return any(getattr(p, "_post_accumulate_grad_hooks", None) for p in found)

    def keep(self) -> None:
        """Have the next check judge gradients as they are now, however they change."""
        self.kept = None
        self.kept = self.look()

    def look(self) -> list[torch.Tensor]:
        """Return the sketches that a check compares, still on their devices.

        They are two for each parameter: the local ones, (shards, 3), and that of the
        synchronised gradient, (1, 3).
        """
        if self.kept is not None:
            return self.kept
        found, zero = [], torch.zeros(1, device="cpu")
        for name, parameter in self.parameters.items():
            mine, grad = self.sketches.get(name), parameter.grad
            synced = None if grad is None else dense(local(grad)).reshape(1, -1)
            found += [
                zero.expand(self.shards[name][0], 3) if mine is None else mine,
                zero.expand(1, 3) if synced is None else sketch(synced),
            ]
        return found

    def table(
        self, exchange: Exchange, where: str, sketches: list[torch.Tensor]
    ) -> list[Compared]:
        """Return the gradients of all ranks, and the mean of the local ones.

        Args:
            exchange: between the ranks.
            where: what this check is called.
            sketches: what ``look`` returned, on the CPU.

        Raises:
            GuardError: if all gradients have been zeroed before the check.
        """
        locals_, own = [], []
        for place, (name, parameter) in enumerate(self.parameters.items()):
            index, grad = self.shards[name][1], parameter.grad
            mine, synced = sketches[2 * place : 2 * place + 2]
            has = [float(grad is not None), float(name in self.sketches), float(index)]
            locals_.append(mine.reshape(-1))
            facts = torch.tensor(has, device="cpu")
            own.append(torch.cat([synced[0], mine[index], facts]))
        if not own:
            return []
        mean = exchange.mean(where, torch.cat(locals_))
        told = exchange.floats(where, torch.stack(own))  # (W, P, 9)
        if _emptied(told) and not self.units and not self.taken():
            raise GuardError(
                f"{where}: backward made gradients, and .grad is empty or zero on all "
                "ranks: step() was called after zero_grad(). Call it between "
                "backward() and optimizer.step(), before the gradients are zeroed."
            )
        found, offset = [], 0
        for place, name in enumerate(self.parameters):
            count = self.shards[name][0]
            expected = mean[offset : offset + 3 * count].view(count, 3)
            offset += 3 * count
            rows = told[:, place]
            made, held = rows[:, 7].any(), rows[:, 6].all()
            if not made or not held or not rows.isfinite().all():
                continue
            at = rows[:, 8].long()
            scale = expected[at, 2].sqrt() * max(exchange.size**-0.5, 0.2)
            found.append(Compared(name, rows, expected[at, :2], scale[:, None]))
        return found


def _emptied(table: torch.Tensor) -> bool:
    """Tell whether each gradient that backward made is gone again, on every rank."""
    made = (table[..., 7] > 0) & (table[..., 5] != 0)
    gone = (table[..., 6] == 0) | (table[..., 2] == 0)
    return bool(made.any() and gone[made].all())


def is_close(ratio: float, number: float) -> bool:
    """Tell whether a measured factor is a number, but for rounding."""
    return abs(ratio / number - 1) < 2e-3


def judge(
    exchange: Exchange,
    where: str,
    found: list[Compared],
    *,
    factor: float,
    scaled: bool,
    tolerance: float,
    hint: str,
) -> float:
    """Raise unless each gradient is ``factor`` times the mean of the local ones.

    All of them may be smaller by one common factor, as clip_grad_norm_ leaves them.
    It is returned; 1 if they are as they should be.

    Args:
        exchange: between the ranks.
        where: what this check is called.
        found: what ``LocalGradients.table`` returned.
        factor: 1, or 1 / scale once a GradScaler has unscaled.
        scaled: whether a GradScaler's factor is still in them, so none may be clipped.
        tolerance: relative to the norm of the local gradients.
        hint: the likely cause, if ``step()`` is called where it should not be.
    """

    def wrong(by: float) -> list[Compared]:
        return [
            one
            for one in found
            if (
                (one.rows[:, :2] - by * one.mean).abs()
                > by * tolerance * one.scale + 1e-30
            ).any()
        ]

    bad = wrong(factor)
    if not bad:
        return 1.0
    dot = sum(float((one.rows[:, :2] * one.mean).sum()) for one in found)
    ratio = dot / max(sum(float((x.mean * x.mean).sum()) for x in found), 1e-38)
    if ratio > 0 and not wrong(ratio):  # all by the same number
        if not scaled and ratio < factor:
            return ratio / factor  # as clip_grad_norm_ leaves them
        if scaled and ratio < factor:
            why = "Clipped while still scaled: call scaler.unscale_(optimizer) before."
        elif hint:
            why = hint
        elif abs(ratio / factor - exchange.size) < 0.05 * exchange.size:
            why = "It is their sum: divide by the number of ranks."
        else:
            why = "They were changed, or not zeroed, since the last step."
        raise GuardError(
            f"{where}: every gradient is {ratio / factor:.4g} times the mean of the "
            f"ranks' local gradients. {why}",
            ratio=ratio / factor,
        )
    name, rows, mean, scale = bad[0]
    near = (rows[:, :2] - factor * rows[:, 3:5]).abs() <= factor * tolerance * scale
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    each = ((rows[:, :2] - factor * mean).abs() / (factor * scale + 1e-38)).amax(1)
    off = each.max().item()
    apart = each > tolerance
    who = names(r for r, bad in zip(exchange.ranks, apart.tolist(), strict=True) if bad)
    who = "" if apart.all() else f" on {who}"
    if near.all() and exchange.size > 1:
        cause = f"{names(exchange.ranks)} still hold their own: "
        cause += hint[:-1] or "nobody synchronises it"
    else:
        cause = hint[:-1] or (
            "a collective was paired with another one, or gradients were changed, "
            "clipped or not zeroed between backward and here"
        )
    raise GuardError(
        f"{where}: the gradient of {name}{more} "
        "is not the mean of the ranks' local gradients: "
        f"it is off by {off:.3g} times their norm{who}; {cause}."
    )
