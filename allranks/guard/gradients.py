"""Invariant: the synchronized gradient is the mean of the ranks' local gradients."""

from functools import partial
from typing import NamedTuple, Self

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


class Facts(NamedTuple):
    """What ``W`` ranks tell about their ``P`` gradients.

    A sketch is two linear numbers and a squared norm (see ``digests.sketch``). Of a
    sharded parameter, both sketches are of the rank's own shard.
    """

    synced: torch.Tensor  # (W, P, 3): sketches of ``.grad``
    local: torch.Tensor  # (W, P, 3): of what backward made from the rank's own batch
    has_grad: torch.Tensor  # (W, P): whether there is a ``.grad``
    has_local: torch.Tensor  # (W, P): whether backward made one
    shard: torch.Tensor  # (W, P): which shard of the parameter the rank holds

    @classmethod
    def unpack(cls, table: torch.Tensor) -> Self:
        """Name the columns of what the ranks exchange, (W, P, 9); ``pack`` writes it.

        Args:
            table: of float32, which is exact for numbers of shards, too.
        """
        synced, local_, flags = table.split(3, dim=-1)
        has_grad, has_local, shard = flags.unbind(-1)
        return cls(synced, local_, has_grad > 0, has_local > 0, shard.long())

    @staticmethod
    def pack(
        synced: torch.Tensor,
        local_: torch.Tensor,
        has_grad: bool,
        has_local: bool,
        shard: int,
    ) -> torch.Tensor:
        """Write this rank's facts about one parameter, from two sketches: (9,)."""
        flags = [float(has_grad), float(has_local), float(shard)]
        return torch.cat([synced, local_, torch.tensor(flags, device="cpu")])

    def zeroed(self) -> bool:
        """Tell whether each gradient that backward made is gone again, on each rank."""
        made = self.has_local & (self.local[..., 2] != 0)
        gone = ~self.has_grad | (self.synced[..., 2] == 0)
        return bool(made.any() and gone[made].all())

    def comparable(self) -> torch.Tensor:
        """Tell which gradients all ranks have, made by backward on at least one: (P,).

        A sketch that is NaN is unknown, or overflowed.
        """
        finite = self.synced.isfinite().all(-1) & self.local.isfinite().all(-1)
        return self.has_local.any(0) & self.has_grad.all(0) & finite.all(0)


class Gradient(NamedTuple):
    """The linear numbers of one gradient's sketches on ``W`` ranks."""

    name: str
    synced: torch.Tensor  # (W, 2): of ``.grad``
    local: torch.Tensor  # (W, 2): of what backward made from the rank's own batch
    mean: torch.Tensor  # (W, 2): of the local ones of all ranks, for each rank's shard
    scale: torch.Tensor  # (W, 1): the norm to which an error is relative

    def is_wrong(self, factor: float, tolerance: float) -> bool:
        """Tell whether it is not ``factor`` times the mean on some rank."""
        off = (self.synced - factor * self.mean).abs()
        return bool((off > factor * tolerance * self.scale + 1e-30).any())


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
        # A parameter of FSDP2 is whole from its unit's forward on, so the hooks are set
        # then. A unit may be entered several times: ``seen`` has what has a hook.
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
        # These are the whole parameters now, under the names of the sharded ones.
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
        num_shards, _, dim = self.shards[name]
        gradient = dense(local(gradient))
        # One sketch for each shard: of a gradient that is whole here, FSDP2 leaves each
        # rank a part, and only equal parts have comparable sketches.
        if num_shards == 1:
            sketches = sketch(gradient.reshape(1, -1))  # (1, 3)
        elif dim == 0 and gradient.shape[0] % num_shards == 0:
            sketches = sketch(gradient.reshape(num_shards, -1))  # (shards, 3)
        else:  # uneven shards; the last ranks may have none, as in torch.chunk
            pieces = list(gradient.chunk(num_shards, dim))
            pieces += [gradient.new_zeros(0)] * (num_shards - len(pieces))
            sketches = torch.cat([sketch(piece.reshape(1, -1)) for piece in pieces])
        before = self._before(name, whole)
        self.sketches[name] = sketches if before is None else before + sketches

    def _before(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        """Return the sketches that a gradient adds to; None if ``.grad`` was zeroed."""
        before, grad = self.sketches.get(name), self.parameters[name].grad
        if before is None:
            return None
        if whole is not self.parameters[name]:  # FSDP2
            waits = self.unreduced.waits(self.parameters[name], whole)
            if waits:
                return before
            if grad is None:  # it was zeroed, unless this torch does not tell
                return None if waits is False else torch.full_like(before, torch.nan)
            shard = local(grad)
            if not shard.numel():
                return before
            # If the shard is all zeros, either the whole was zeroed, or only this part
            # of it happens to be 0.
            unknown = torch.full_like(before, torch.nan)
            return torch.where(shard.any().to(before.device), before, unknown)
        if grad is None:
            return None
        if grad.layout != torch.strided:
            return before
        # zero_grad(set_to_none=False) leaves zeros, and what was sketched is void.
        return torch.where(local(grad).any(), before, torch.zeros_like(before))

    def reached(self) -> bool:
        """Tell whether there is any gradient, or has been one since ``arm``."""
        if self.sketches or not self.parameters:
            return True
        parameters = self.parameters.values()
        return any(p.grad is not None or not p.requires_grad for p in parameters)

    def bypassed(self) -> bool:
        """Tell whether there is a gradient that backward did not accumulate."""
        return self.armed and any(
            p.requires_grad and p.grad is not None and name not in self.passes
            for name, p in self.parameters.items()
            if id(p) not in self.inside
        )

    def consumed(self) -> bool:
        """Tell whether a hook consumes gradients as they are made, to save memory."""
        hooks = "_post_accumulate_grad_hooks"
        return any(getattr(p, hooks, None) for p in self.parameters.values())

    def keep(self) -> None:
        """Have the next check judge gradients as they are now, however they change."""
        self.kept = None
        self.kept = self.sketch_all()

    def sketch_all(self) -> list[torch.Tensor]:
        """Return the sketches that a check compares, still on their devices.

        They are two for each parameter: the local ones, (shards, 3), and that of the
        synchronized gradient, (1, 3).
        """
        if self.kept is not None:
            return self.kept
        sketches, zero = [], torch.zeros(1, device="cpu")
        for name, parameter in self.parameters.items():
            own, grad = self.sketches.get(name), parameter.grad
            synced = None if grad is None else dense(local(grad)).reshape(1, -1)
            sketches += [
                zero.expand(self.shards[name][0], 3) if own is None else own,
                zero.expand(1, 3) if synced is None else sketch(synced),
            ]
        return sketches

    def gather(
        self, exchange: Exchange, where: str, sketches: list[torch.Tensor]
    ) -> list[Gradient]:
        """Return the gradients of all ranks, and the mean of the local ones.

        Args:
            exchange: between the ranks.
            where: what this check is called.
            sketches: what ``sketch_all`` returned, on the CPU.

        Raises:
            GuardError: if all gradients have been zeroed before the check.
        """
        flat, own = [], []
        for place, (name, parameter) in enumerate(self.parameters.items()):
            shard = self.shards[name][1]
            # (shards, 3) for the whole gradient, and (1, 3) for the rank's own shard.
            local_, synced = sketches[2 * place : 2 * place + 2]
            flat.append(local_.reshape(-1))
            has_grad, has_local = parameter.grad is not None, name in self.sketches
            own.append(Facts.pack(synced[0], local_[shard], has_grad, has_local, shard))
        if not own:
            return []
        # Each rank has sketches of all shards, because backward makes the whole
        # gradient there; so their mean is one all_reduce, whoever holds which shard.
        mean = exchange.mean(where, torch.cat(flat))  # (sum of shards * 3,)
        facts = Facts.unpack(exchange.floats(where, torch.stack(own)))
        if facts.zeroed() and not self.units and not self.consumed():
            raise GuardError(
                f"{where}: backward made gradients, and .grad is empty or zero on all "
                "ranks: step() was called after zero_grad(). Call it between "
                "backward() and optimizer.step(), before the gradients are zeroed."
            )
        means = mean.view(-1, 3).split([self.shards[n][0] for n in self.parameters])
        comparable = facts.comparable().tolist()
        return [
            self._gradient(place, name, facts, means[place], exchange.size)
            for place, name in enumerate(self.parameters)
            if comparable[place]
        ]

    def _gradient(
        self, place: int, name: str, facts: Facts, mean: torch.Tensor, world_size: int
    ) -> Gradient:
        """Return one gradient on all ranks; ``mean`` is that of its shards, (S, 3)."""
        expected = mean[facts.shard[:, place]]  # (W, 3)
        # The last column is the mean of the squared norms. The norm of a mean of W
        # independent gradients is smaller by the root of W; equal ones keep theirs.
        scale = expected[:, 2:].sqrt() * max(world_size**-0.5, 0.2)
        return Gradient(
            name,
            synced=facts.synced[:, place, :2],
            local=facts.local[:, place, :2],
            mean=expected[:, :2],
            scale=scale,
        )


def is_close(ratio: float, number: float) -> bool:
    """Tell whether a measured factor is a number, but for rounding."""
    return abs(ratio / number - 1) < 2e-3


def judge(
    exchange: Exchange,
    where: str,
    gradients: list[Gradient],
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
        gradients: what ``LocalGradients.gather`` returned.
        factor: 1, or 1 / scale once a GradScaler has unscaled.
        scaled: whether a GradScaler's factor is still in them, so none may be clipped.
        tolerance: relative to the norm of the local gradients.
        hint: the likely cause, if ``step()`` is called where it should not be.
    """
    wrong = [one for one in gradients if one.is_wrong(factor, tolerance)]
    if not wrong:
        return 1.0
    # The least-squares factor between the two: the projection of all synchronized
    # sketches on the means. If it explains every gradient, all have one factor.
    dot = sum(float((one.synced * one.mean).sum()) for one in gradients)
    square = sum(float((one.mean * one.mean).sum()) for one in gradients)
    ratio = dot / max(square, 1e-38)
    if not ratio > 0 or any(one.is_wrong(ratio, tolerance) for one in gradients):
        raise GuardError(
            f"{where}: {_not_the_mean(exchange, wrong, factor, tolerance, hint)}"
        )
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


def _not_the_mean(
    exchange: Exchange,
    wrong: list[Gradient],
    factor: float,
    tolerance: float,
    hint: str,
) -> str:
    """Say by how much the first wrong gradient is off, on which ranks, and why."""
    name, synced, local_, mean, scale = wrong[0]
    # Nobody exchanged it, if every rank still has what its own backward made.
    unsynced = ((synced - factor * local_).abs() <= factor * tolerance * scale).all()
    # In units of the norm, by rank: (W,)
    off = ((synced - factor * mean).abs() / (factor * scale + 1e-38)).amax(1)
    is_off = off > tolerance
    who = names(
        r for r, bad in zip(exchange.ranks, is_off.tolist(), strict=True) if bad
    )
    who = "" if is_off.all() else f" on {who}"
    if unsynced and exchange.size > 1:
        cause = f"{names(exchange.ranks)} still hold their own: "
        cause += hint[:-1] or "nobody synchronizes it"
    else:
        cause = hint[:-1] or (
            "a collective was paired with another one, or gradients were changed, "
            "clipped or not zeroed between backward and here"
        )
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return (
        f"the gradient of {name}{more} is not the mean of the ranks' local gradients: "
        f"it is off by {off.max().item():.3g} times their norm{who}; {cause}."
    )
