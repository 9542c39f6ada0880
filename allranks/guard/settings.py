"""Invariants of what is around the tensors: structure, optimizer, scaler, devices."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .digests import layout, number
from .exchange import GuardError, names

WRAPPERS = (nn.DataParallel, DistributedDataParallel)


class Settings:
    """Compares a model's structure, optimizers and GradScaler over the ranks."""

    def __init__(self, exchange, model: nn.Module, parameters, optimizer, scaler):
        self.exchange, self.model, self.scaler = exchange, model, scaler
        self.parameters = parameters  # a function: name to parameter, as of now
        given = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
        self.optimizers = [found for found in given if found is not None]

    def wraps(self) -> str | None:
        """Say what is wrong with the wrapper, seen from this rank alone."""
        if any(
            type(m).__name__ == "FullyShardedDataParallel" for m in self.model.modules()
        ):
            return (
                "the model is sharded by FullyShardedDataParallel (FSDP1): its flat "
                "parts cannot be compared. Use fully_shard; Guard(None) does the rest."
            )
        if not isinstance(self.model, WRAPPERS):
            return None
        inner = self.model.module
        outside, inside = type(self.model).__name__, type(inner).__name__
        if isinstance(inner, WRAPPERS):
            return (
                f"the model is wrapped twice, {outside} around {inside}: every key of "
                "its state dict begins with module.module. Wrap once."
            )
        if isinstance(self.model, nn.DataParallel) and not self.model.device_ids:
            return (
                "nn.DataParallel has no devices here: it calls the module and splits "
                "nothing. Without an accelerator it does nothing."
            )
        return None

    def holds(self) -> str | None:
        """Say what the optimizer should hold and does not, seen from this rank."""
        if not self.optimizers:
            return None
        held = {
            id(p) for o in self.optimizers for g in o.param_groups for p in g["params"]
        }
        own = {id(p) for p in self.model.parameters()}
        lost = [
            name
            for name, p in self.parameters().items()
            if p.requires_grad and id(p) not in held
        ]
        if not lost:
            return None
        foreign = len(held - own)
        why = (
            f"It holds {foreign} tensors that are not the model's: it was built before "
            "fully_shard, parallelize_module or a change of the model. Build it after."
            if foreign
            else "Add it, or freeze it with requires_grad_(False)."
        )
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        return f"the optimizer does not hold {lost[0]}{more}: it never moves. {why}"

    def device(self) -> int:
        """The GPU this rank computes on, as a number; 0 on anything else."""
        first = next(self.model.parameters(), None)
        if first is None or first.device.type != "cuda":
            return 0
        properties = torch.cuda.get_device_properties(first.device)
        return number(str(properties.uuid)) if hasattr(properties, "uuid") else 0

    def begin(self, where: str, world_size: int | None, skip: frozenset) -> None:
        """Check once what does not change."""
        size = self.exchange.size
        if world_size is not None and world_size != size:
            raise GuardError(
                f"{where}: {world_size} ranks were asked for, the group has {size}. "
                "Were torchrun's options behind the script's name?"
            )
        wrong = self.wraps() or ("optimizer" not in skip and self.holds()) or None
        failed = [r[0] for r in self.exchange.integers(where, [int(wrong is not None)])]
        if any(failed):
            texts = self.exchange.texts(wrong or "")
            who = [r for r, bad in zip(self.exchange.ranks, failed, strict=True) if bad]
            text = next(text for text in texts if text)
            raise GuardError(f"{where}: on {names(who)}, {text}")
        places = [row[0] for row in self.exchange.integers(where, [self.device()])]
        for place, ranks in self.exchange.split(places).items():
            if place and len(ranks) > 1 and "devices" not in skip:
                raise GuardError(
                    f"{where}: {names(ranks)} compute on one and the same GPU. Each "
                    "takes the device LOCAL_RANK of its machine: read it from there."
                )

    def texts(self) -> tuple[str, str, str]:
        """The structure, the optimizers' settings and the scale, in words."""
        structure = "\n".join(
            f"{name} {tuple(p.shape)} {p.dtype} requires_grad={p.requires_grad}"
            f"{layout(p) and ' '}{layout(p)}"
            for name, p in self.parameters().items()
        )
        settings = "\n".join(
            f"optimizer {i} group {j}: {key}={_plain(value)}"
            for i, optimizer in enumerate(self.optimizers)
            for j, group in enumerate(optimizer.param_groups)
            for key, value in sorted(group.items())
            if key not in ("params", "param_names") and _is_plain(value)
        )
        scale = "none" if self.scaler is None else f"{self.scaler.get_scale():.9g}"
        return structure, settings, f"GradScaler's scale={scale}"

    def numbers(self) -> list[int]:
        """The three texts as numbers, for the exchange."""
        return [number(text) for text in self.texts()]

    def judge(self, where: str, rows: list[list[int]], skip: frozenset) -> None:
        """Raise for the first line of the texts that is not the same on all ranks."""
        for place, text in enumerate(self.texts()):
            values = [row[place] for row in rows]
            if len(set(values)) == 1 or ("optimizer" in skip and place == 1):
                continue
            lines = [own.split("\n") for own in self.exchange.texts(text)]
            longest = max(map(len, lines))
            for own in lines:
                own += ["nothing"] * (longest - len(own))
            columns = zip(*lines, strict=True)
            column = next(c for c in columns if len(set(c)) > 1)
            groups = self.exchange.split(list(column)).items()
            said = "; ".join(f"{line} on {names(ranks)}" for line, ranks in groups)
            what = (
                "model's parameters are",
                "optimizer's settings are",
                "GradScaler is",
            )[place]
            blame = self.exchange.suspects(list(column))
            raise GuardError(
                f"{where}: the {what} not the same on all ranks: {said} ({blame})."
                + (SCALE if place == 2 else "")
            )

    def state(self) -> dict[str, torch.Tensor]:
        """The optimizers' state as tensors, by parameter and key."""
        found = {}
        for optimizer in self.optimizers:
            if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
                continue  # each rank holds its own part
            for name, parameter in self.model.named_parameters():
                for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                    if key == "step" and not torch.is_tensor(value):
                        value = torch.tensor(value, device="cpu")
                    # Other numbers may be a rank's own, as LBFGS keeps its last loss.
                    if torch.is_tensor(value) and (key == "step" or value.dim()):
                        found[f"{key} of {name}"] = value
        return found

    def factor(self) -> tuple[float | None, bool]:
        """What gradients are multiples of by now, and whether still scaled.

        None if that is not one number: some optimizers are unscaled and some are not.
        """
        if self.scaler is None or not self.scaler.is_enabled():
            return 1.0, False
        states = getattr(self.scaler, "_per_optimizer_states", {})
        stages = [
            states[id(o)]["stage"].name if id(o) in states else "READY"
            for o in self.optimizers
        ]
        if len({stage == "READY" for stage in stages}) > 1:
            return None, True
        if any(stage != "READY" for stage in stages):
            return 1 / self.scaler.get_scale(), False
        return 1.0, True


SCALE = (
    " One rank saw an overflow and skipped its step, the other did not: gradients must "
    "be synchronised before the scaler looks, or use ShardedGradScaler."
)


def _plain(value):
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if torch.is_tensor(value) else value


def _is_plain(value) -> bool:
    """Whether its text is its value; a function's or an object's holds an address."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | str | torch.Tensor)
