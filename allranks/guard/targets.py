"""The model and the optimizers that a guard is given, and whether they fit together.

``Targets`` lists what is compared in each check. ``begin`` looks once, when the guard
is built, at what never changes: the wrapper, who holds which parameter, the devices.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from allranks.guard.buffers import Buffers
from allranks.guard.digests import local, number, settle, shard, sums
from allranks.guard.exchange import START, Exchange, GuardError, dealt, names
from allranks.guard.wrappers import WRAPPERS, bare, joining

OUTSIDE = "optimizer's parameter outside of the model, group"
KINDS = {  # kinds of tensors, and the word that skips each; the first is named first
    "gradient": "gradients",
    "optimizer state": "optimizer",
    OUTSIDE: "parameters",
    "parameter": "parameters",
    "buffer": "buffers",
    "attribute": "buffers",
}
COPIES = (
    "every rank holds the same numbers as its own shard of {}: they were drawn after "
    "sharding, with one seed. Draw the whole, then shard; or draw through DTensor."
)
EMPTY = (
    "group {} of optimizer {} holds no parameter, so its settings apply to nothing. If "
    "names choose the groups: those of the wrapped model begin with module."
)
SKIPS = {*KINDS.values(), "data", "devices", "loss", "modes", "randomness"}

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None


class Targets:
    """What a guard was given to look at.

    Args:
        model: None stands for a model without parameters.
        optimizer: one, several or none.
        scaler: a GradScaler, if there is one.
        ignore: one or more prefixes of names to leave out.
        skip: one or more of ``SKIPS``.

    Raises:
        ValueError: if ``skip`` has a word that is not in ``SKIPS``.
    """

    def __init__(
        self,
        model: nn.Module | None,
        optimizer: Optimizers,
        scaler: torch.amp.GradScaler | None,
        ignore: str | Iterable[str],
        skip: str | Iterable[str],
    ) -> None:
        ignore, skip = _words(ignore), _words(skip)
        if not SKIPS.issuperset(skip):
            raise ValueError(f"skip={skip}: there are {', '.join(sorted(SKIPS))}")
        self.model = nn.Module() if model is None else model
        self.scaler, self.skip = scaler, frozenset(skip)
        ignore += tuple(getattr(self.model, "parameters_to_ignore", ()))
        self._prefixes = tuple(map(bare, ignore))
        given = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
        self.optimizers = [one for one in given if one is not None]
        # A class that is not torch's may let each rank move a part of the weights.
        homes = [type(one).__module__ for one in self.optimizers]
        self.custom = any(not home.startswith("torch.") for home in homes)
        self.dealt = False  # whether each rank's optimizer holds a part of them
        self.copies = False  # whether optimizers hold copies, perhaps a rank's shard
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        first = next(tensors, None)
        self.device = torch.device("cpu") if first is None else first.device

    def ignored(self, name: str) -> bool:
        """Tell whether a tensor of this name is left out."""
        return bool(self._prefixes) and bare(name).startswith(self._prefixes)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the model's parameters by name, except for those to ignore."""
        return {n: p for n, p in self.model.named_parameters() if not self.ignored(n)}

    def groups(self) -> list[tuple[int, int, dict[str, Any]]]:
        """List the optimizers' groups, as (number of optimizer, of group, group)."""
        return [
            (i, j, group)
            for i, optimizer in enumerate(self.optimizers)
            for j, group in enumerate(optimizer.param_groups)
        ]

    def outside(self) -> dict[str, torch.Tensor]:
        """Return parameters that optimizers hold but the model doesn't.

        A criterion with weights has some.
        """
        own = {id(p) for p in self.model.parameters()}
        return {
            f"{j}[{place}] of optimizer {i}, {tuple(p.shape)},": p
            for i, j, group in self.groups()
            for place, p in enumerate(group["params"])
            if own and id(p) not in own and not self.ignored(f"optimizer {i}")
            if not self.copies
        }

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """Return the optimizers' state as tensors, by key and parameter."""
        state = {}
        for optimizer in self.optimizers:
            if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
                continue  # because each rank holds its own part
            for name, parameter in self.model.named_parameters():
                for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                    if key == "step" and not torch.is_tensor(value):
                        value = torch.tensor(value, device="cpu")
                    # Other numbers may be a rank's own: LBFGS keeps its last loss.
                    if torch.is_tensor(value) and (key == "step" or value.dim()):
                        state[f"{key} of {name}"] = value
        return state

    def tensors(
        self, kinds: Iterable[str], buffers: Buffers
    ) -> dict[str, dict[str, torch.Tensor]]:
        """Return what is compared bit by bit, by kind and name.

        Args:
            kinds: some of ``KINDS``.
            buffers: which knows those that a rank may have for itself.
        """
        parameters = self.parameters()
        gradients = {n: p.grad for n, p in parameters.items() if p.grad is not None}
        by_kind = {
            "gradient": lambda: gradients,
            "optimizer state": lambda: self._without(
                self.optimizer_state(), buffers, of=" of "
            ),
            OUTSIDE: self.outside,
            "parameter": lambda: parameters,
            "buffer": lambda: self._without(dict(self.model.named_buffers()), buffers),
            "attribute": lambda: self._without(buffers.attributes(), buffers),
        }
        kinds = [kind for kind in kinds if KINDS[kind] not in self.skip]
        if joining(self.model):  # a rank without more batches has old gradients
            kinds = [kind for kind in kinds if kind != "gradient"]
        return {kind: by_kind[kind]() for kind in kinds}

    def _without(
        self, tensors: dict[str, torch.Tensor], buffers: Buffers, of: str = ""
    ) -> dict[str, torch.Tensor]:
        """Leave out what a rank may have for itself, and what is ignored.

        Args:
            tensors: by name.
            buffers: which knows the former.
            of: what stands before the name of a parameter in each of these names.
        """
        return {
            name: tensor
            for name, tensor in tensors.items()
            if name not in buffers.per_rank
            if not self.ignored(name.partition(of)[2] if of else name)
        }


def _words(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def begin(exchange: Exchange, targets: Targets, world_size: int | None) -> None:
    """Check once what does not change during a training.

    Args:
        exchange: between the ranks.
        targets: what to look at.
        world_size: how many ranks there should be; None accepts any number.

    Raises:
        GuardError: if something is wrong on any rank.
    """
    skip, model = targets.skip, targets.model
    if world_size is not None and world_size != exchange.size:
        raise GuardError(f"{START}: {_wrong_size(exchange, world_size)}")
    wrong = wrongly_wrapped(model) or without_shape(targets)
    lost = [] if wrong or "optimizer" in skip else not_held(targets)
    # A rank may lack what another one holds: then ranks deal the parameters out. Those
    # that no rank holds are lost even so.
    targets.dealt, nobody = owners(exchange, lost)
    lost = [place for place in lost if place in nobody or not targets.dealt]
    if lost:
        wrong = why_not_held(targets, lost)
        targets.copies = not wrong
    failed = [row[0] == 1 for row in exchange.integers(START, [int(bool(wrong))])]
    if any(failed):
        who, text = exchange.first_of(failed, wrong)
        raise GuardError(f"{START}: on {who}, {text}")
    group = empty_group(targets)
    if group and "optimizer" not in skip:
        exchange.warn(group)
    name = copied_shard(exchange, model) if exchange.size > 1 else ""
    if name:
        raise GuardError(f"{START}: {COPIES.format(name)}")
    gpus = [row[0] for row in exchange.integers(START, [gpu_number(model)])]
    for gpu, ranks in exchange.split(gpus).items():
        if gpu and len(ranks) > 1 and "devices" not in skip:
            raise GuardError(
                f"{START}: {names(ranks)} compute on one and the same GPU. Each "
                "takes the device LOCAL_RANK of its machine: read it from there."
            )


def _wrong_size(exchange: Exchange, world_size: int) -> str:
    """Say why there may be more or fewer ranks than were asked for."""
    size = exchange.size
    world = dist.get_world_size() if exchange.group is not None else size
    why = (
        f"the model's group has {size} of {world}: {names(exchange.ranks)}. "
        "Was DDP given a process_group that leaves out some?"
        if size < world
        else f"{size} came. Were torchrun's options behind the script's name?"
    )
    return f"{world_size} ranks were asked for, {why}"


def wrongly_wrapped(model: nn.Module) -> str:
    """Say what is wrong with the wrapper on this rank; "" if nothing is."""
    if any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules()):
        return (
            "the model is sharded by FullyShardedDataParallel (FSDP1): its flat "
            "parts cannot be compared. Use fully_shard; Guard(None) does the rest."
        )
    if not isinstance(model, WRAPPERS):
        return ""
    inner = model.module
    outside, inside = type(model).__name__, type(inner).__name__
    if isinstance(inner, WRAPPERS):
        return (
            f"the model is wrapped twice, {outside} around {inside}: every key of "
            "its state dict begins with module.module. Wrap once."
        )
    if isinstance(model, nn.DataParallel) and not model.device_ids:
        return (
            "nn.DataParallel has no devices here: it calls the module and splits "
            "nothing. Without an accelerator it does nothing."
        )
    return ""


def without_shape(targets: Targets) -> str:
    """Say which parameter has no shape yet; "" if all have one."""
    for name, parameter in targets.parameters().items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            return (
                f"the lazy parameter {name} has no shape yet: run one batch through "
                "the model first, then build the Guard."
            )
    return ""


def not_held(targets: Targets) -> list[int]:
    """List the places of the parameters that no optimizer here holds, but should."""
    if not targets.optimizers:
        return []
    own = {id(p) for *_, group in targets.groups() for p in group["params"]}
    parameters = enumerate(targets.parameters().values())
    return [i for i, p in parameters if p.requires_grad and id(p) not in own]


def owners(exchange: Exchange, lost: list[int]) -> tuple[bool, set[int]]:
    """Tell whether each rank steps a part of the parameters, as in ZeRO by hand.

    Returns:
        Whether it is so, and the places of the parameters that no rank holds.
    """
    rows = [set(row) for row in exchange.integers(f"{START}: who holds what", lost)]
    some = set().union(*rows)
    return dealt([some - row for row in rows]), set.intersection(*rows)


def why_not_held(targets: Targets, lost: list[int]) -> str:
    """Say which parameters never move, and why; "" if a copy of them may."""
    known = list(targets.parameters().items())
    own = {id(p) for p in targets.model.parameters()}
    tensors = [p for *_, group in targets.groups() for p in group["params"]]
    foreign = [p for p in tensors if id(p) not in own]
    shapes = {tuple(known[i][1].shape) for i in lost}
    types = {known[i][1].dtype for i in lost}
    # Weights in float32 behind those of 16 bits, or a flat shard, come back by a copy.
    # If they do not, the weights stand still, which ``health`` looks at.
    flat = [p.dim() == 1 and tuple(p.shape) not in shapes for p in foreign]
    copies = zip(foreign, flat, strict=True)
    if foreign and all(is_flat or p.dtype not in types for p, is_flat in copies):
        return ""
    why = (
        f"It holds {len(foreign)} tensors that are not the model's: it was built "
        "before fully_shard, parallelize_module or a change of the model. Build it "
        "after."
        if foreign
        else "Add it, give the guard all optimizers, or freeze it with "
        "requires_grad_(False)."
    )
    first = known[lost[0]][0]
    first += f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return f"the optimizer does not hold {first}: it never moves. {why}"


def empty_group(targets: Targets) -> str:
    """Say which of the optimizer's groups is empty, if a wrapper changed the names."""
    if not isinstance(targets.model, WRAPPERS):
        return ""
    for i, j, group in targets.groups():
        if not group["params"] and len(targets.optimizers[i].param_groups) > 1:
            return EMPTY.format(j, i)
    return ""


def copied_shard(exchange: Exchange, model: nn.Module) -> str:
    """Name a parameter whose shards, different parts of it, hold equal numbers."""
    shards = [  # few numbers may be equal by chance
        (name, shard(p), local(p).flatten())
        for name, p in model.named_parameters()
        if shard(p) and not p.is_meta and local(p).numel() > 7
    ]
    own = [x for _, place, part in shards for x in (place, sums([part]))]
    own = settle([own])[0][0]
    rows = exchange.integers(f"{START}: what the shards hold", own)
    if len({len(row) for row in rows}) > 1:
        return ""  # uneven shards
    for at, (name, _, part) in enumerate(shards):
        places, digests = ({row[2 * at + i] for row in rows} for i in range(2))
        # Constants, such as the zeros of a bias, are equal in every shard.
        if len(places) > 1 and len(digests) == 1 and bool((part != part[0]).any()):
            return name
    return ""


def gpu_number(model: nn.Module) -> int:
    """Return a number for the GPU this rank computes on; 0 on anything else."""
    first = next(model.parameters(), None)
    if first is None or first.device.type != "cuda":
        return 0
    properties = torch.cuda.get_device_properties(first.device)
    return number(str(properties.uuid)) if hasattr(properties, "uuid") else 0
