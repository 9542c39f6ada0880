"""What is checked once, when the guard is built: wrapper, optimizer, devices."""

import torch
import torch.distributed as dist
from torch import nn

from allranks.guard.digests import local, number, settle, shard, sums
from allranks.guard.exchange import Exchange, GuardError, dealt, names
from allranks.guard.training import Training
from allranks.guard.wrappers import WRAPPERS

COPIES = (
    "every rank holds the same numbers as its own shard of {}: they were drawn after "
    "sharding, with one seed. Draw the whole, then shard; or draw through DTensor."
)
EMPTY = (
    "group {} of optimizer {} holds no parameter, so its settings are nobody's. If "
    "names choose the groups: those of the wrapped model begin with module."
)


def begin(
    exchange: Exchange, training: Training, where: str, world_size: int | None
) -> None:
    """Check once what does not change during a training.

    Args:
        exchange: between the ranks.
        training: what to look at.
        where: what this check is called.
        world_size: how many ranks there should be; None accepts any number.

    Raises:
        GuardError: if something is wrong on any rank.
    """
    size, skip, model = exchange.size, training.skip, training.model
    if world_size is not None and world_size != size:
        world = dist.get_world_size() if exchange.group is not None else size
        raise GuardError(
            f"{where}: {world_size} ranks were asked for, "
            + (
                f"the model's group has {size} of {world}: {names(exchange.ranks)}. "
                "Was DDP given a process_group that leaves out some?"
                if size < world
                else f"{size} came. Were torchrun's options behind the script's name?"
            )
        )
    wrong = wrongly_wrapped(model) or without_shape(training)
    lost = [] if wrong or "optimizer" in skip else not_held(training)
    training.dealt, nobody = owners(exchange, where, lost)
    lost = [place for place in lost if place in nobody or not training.dealt]
    if lost:
        wrong = why_not_held(training, lost)
        training.copies = not wrong
    failed = [row[0] == 1 for row in exchange.integers(where, [int(bool(wrong))])]
    if any(failed):
        who, text = exchange.first_of(failed, wrong)
        raise GuardError(f"{where}: on {who}, {text}")
    group = empty_group(training)
    if group and "optimizer" not in skip:
        exchange.warn(group)
    name = copied_shard(exchange, where, model) if size > 1 else ""
    if name:
        raise GuardError(f"{where}: {COPIES.format(name)}")
    places = [row[0] for row in exchange.integers(where, [device_number(model)])]
    for place, ranks in exchange.split(places).items():
        if place and len(ranks) > 1 and "devices" not in skip:
            raise GuardError(
                f"{where}: {names(ranks)} compute on one and the same GPU. Each "
                "takes the device LOCAL_RANK of its machine: read it from there."
            )


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


def without_shape(training: Training) -> str:
    """Say which parameter has no shape yet; "" if all have one."""
    for name, parameter in training.parameters().items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            return (
                f"the lazy parameter {name} has no shape yet: run one batch through "
                "the model first, then build the Guard."
            )
    return ""


def not_held(training: Training) -> list[int]:
    """List the places of the parameters that no optimizer here holds, but should."""
    if not training.optimizers:
        return []
    held = {id(p) for *_, group in training.groups() for p in group["params"]}
    found = enumerate(training.parameters().values())
    return [i for i, p in found if p.requires_grad and id(p) not in held]


def owners(exchange: Exchange, where: str, lost: list[int]) -> tuple[bool, set[int]]:
    """Tell whether each rank steps a part of the parameters, as in ZeRO by hand.

    Returns:
        Whether it is so, and the places of the parameters that no rank holds.
    """
    rows = [set(row) for row in exchange.integers(f"{where}: who holds what", lost)]
    some = set().union(*rows)
    return dealt([some - row for row in rows]), set.intersection(*rows)


def why_not_held(training: Training, lost: list[int]) -> str:
    """Say which parameters never move, and why; "" if a copy of them may."""
    known = list(training.parameters().items())
    own = {id(p) for p in training.model.parameters()}
    tensors = [p for *_, group in training.groups() for p in group["params"]]
    foreign = [p for p in tensors if id(p) not in own]
    shapes = {tuple(known[i][1].shape) for i in lost}
    types = {known[i][1].dtype for i in lost}
    # Weights in float32 behind those of 16 bits, or a flat shard, come back by a copy.
    # If they do not, the weights stand still, which ``loop`` looks at.
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


def empty_group(training: Training) -> str:
    """Say which of the optimizer's groups is empty, if a wrapper changed the names."""
    if not isinstance(training.model, WRAPPERS):
        return ""
    for i, j, group in training.groups():
        if not group["params"] and len(training.optimizers[i].param_groups) > 1:
            return EMPTY.format(j, i)
    return ""


def copied_shard(exchange: Exchange, where: str, model: nn.Module) -> str:
    """Name a parameter whose shards, different parts of it, hold equal numbers."""
    found = [
        (name, shard(p), local(p).flatten())
        for name, p in model.named_parameters()
        if shard(p) and not p.is_meta and local(p).numel() > 7
    ]
    own = [x for _, place, part in found for x in (place, sums([part]))]
    own = settle([own])[0][0]
    rows = exchange.integers(f"{where}: what the shards hold", own)
    if len({len(row) for row in rows}) > 1:
        return ""  # uneven shards
    for at, (name, _, part) in enumerate(found):
        places, digests = ({row[2 * at + i] for row in rows} for i in range(2))
        if len(places) > 1 and len(digests) == 1 and bool((part != part[0]).any()):
            return name
    return ""


def device_number(model: nn.Module) -> int:
    """Return a number for the GPU this rank computes on; 0 on anything else."""
    first = next(model.parameters(), None)
    if first is None or first.device.type != "cuda":
        return 0
    properties = torch.cuda.get_device_properties(first.device)
    return number(str(properties.uuid)) if hasattr(properties, "uuid") else 0
