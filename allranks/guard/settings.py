"""Invariants of what is around the tensors: structure, optimizer, scaler."""

import torch
from torch import nn

from . import modes
from .digests import layout, number
from .exchange import GuardError, names


class Settings:
    """Compares a model's structure, optimizers and GradScaler over the ranks."""

    def __init__(self, exchange, model: nn.Module, parameters, out, optimizer, scaler):
        self.exchange, self.model, self.scaler = exchange, model, scaler
        self.out = out  # whether a name is to be ignored
        self.parameters = parameters  # a function: name to parameter, as of now
        given = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
        self.optimizers = [found for found in given if found is not None]
        self.host: dict[int, torch.Tensor] = {}  # tensors among settings, fetched
        self.forward = self.hooked = str  # what forward ran in; hooks on gradients

    def groups(self):
        """Optimizer, group, name and value of each setting that can be compared."""
        for i, optimizer in enumerate(self.optimizers):
            for j, group in enumerate(optimizer.param_groups):
                for key, value in sorted(group.items()):
                    if key not in ("params", "param_names") and _is_plain(value):
                        yield i, j, key, value

    def loose(self) -> list[torch.Tensor]:
        """Tensors among the settings: they may lie on another device."""
        values = [value for *_, value in self.groups()]
        flat = [x for v in values for x in (v if isinstance(v, list | tuple) else [v])]
        flat.append(getattr(self.scaler, "_scale", None))
        return [x for x in flat if torch.is_tensor(x)]

    def land(self, host: list[torch.Tensor]) -> None:
        """Take what ``loose`` gave, on the CPU: it serves until the next check."""
        self.host = dict(zip(map(id, self.loose()), host, strict=True))

    def scale(self) -> float:
        """The GradScaler's scale, without another copy if it came already."""
        found = self.host.get(id(getattr(self.scaler, "_scale", None)))
        return float(self.scaler.get_scale() if found is None else found)

    def plain(self, value):
        """A setting with numbers for tensors."""
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value]
        if torch.is_tensor(value):
            return self.host.get(id(value), value).tolist()
        return value

    def members(self) -> list[str]:
        """Which group of which optimizer holds each parameter."""
        held: dict = {}
        for i, optimizer in enumerate(self.optimizers):
            for j, group in enumerate(optimizer.param_groups):
                for p in group["params"]:
                    held.setdefault(id(p), []).append(f"group {j} of optimizer {i}")
        return [
            f"{name} is in {' and '.join(held.get(id(p), ['no optimizer']))}"
            for name, p in self.parameters().items()
            if held
        ]

    def texts(self, start: bool = False) -> dict[str, str]:
        """All that is compared, in words. At the ``start`` modes may still change."""
        kinds = [
            f"optimizer {i} is {type(optimizer).__name__}"
            for i, optimizer in enumerate(self.optimizers)
        ]
        settings = [
            f"optimizer {i} group {j}: {key}={self.plain(value)}"
            for i, j, key, value in self.groups()
        ]
        return {
            "model's parameters are": "\n".join(
                f"{name} {tuple(p.shape)} {p.dtype} requires_grad={p.requires_grad}"
                f"{layout(p) and ' '}{layout(p)}{' on meta' if p.is_meta else ''}"
                for name, p in self.parameters().items()
            ),
            "model's modules are": modes.modules(self.model, self.out),
            HOOKS: "" if start else self.hooked(),
            "modes are": ""
            if start
            else modes.modes(self.model, self.out, self.forward()),
            OPTIMIZER: "\n".join(kinds + self.members() + settings),
            SCALER: "scale=none"
            if self.scaler is None
            else f"GradScaler's scale={self.scale():.9g}",
        }

    def judge(self, where: str, rows: list[list[int]], skip: frozenset) -> None:
        """Raise for the first line of the texts that is not the same on all ranks."""
        texts = self.texts(where == START)
        for (what, text), values in zip(
            texts.items(), zip(*rows, strict=True), strict=True
        ):
            if len(set(values)) == 1 or SKIPPED.get(what) in skip:
                continue
            texts_ = self.exchange.texts(text)
            lines = [own.split("\n") if own else [] for own in texts_]
            longest = max(map(len, lines))
            for own in lines:
                own += ["nothing"] * (longest - len(own))
            columns = zip(*lines, strict=True)
            column = next(c for c in columns if len(set(c)) > 1)
            groups = self.exchange.split(list(column)).items()
            said = "; ".join(f"{line} on {names(ranks)}" for line, ranks in groups)
            blame = self.exchange.suspects(list(column))
            why = PARTS if "nothing" in column and what in PARTED else ""
            if what in MODES:
                why = why or modes.why(column[0])
            raise GuardError(
                f"{where}: the {what} not the same on all ranks: {said} ({blame})."
                + {SCALER: SCALE, HOOKS: REGISTER, OPTIMIZER: STEER}.get(what, why)
            )

    def numbers(self, where: str) -> list[int]:
        """The texts as numbers, for the exchange."""
        return [number(text) for text in self.texts(where == START).values()]

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

    def outside(self) -> dict[str, torch.Tensor]:
        """Parameters that optimizers hold, and the model does not: a criterion's."""
        own = {id(p) for p in self.model.parameters()}
        return {
            f"{j}[{place}] of optimizer {i}, {tuple(p.shape)},": p
            for i, optimizer in enumerate(self.optimizers)
            for j, group in enumerate(optimizer.param_groups)
            for place, p in enumerate(group["params"])
            if own and id(p) not in own and not self.out(f"optimizer {i}")
        }

    def stage(self) -> str | None:
        """Whether gradients are scaled, unscaled or "plain"; None if some are each."""
        if self.scaler is None or not self.scaler.is_enabled():
            return "plain"
        states = getattr(self.scaler, "_per_optimizer_states", {})
        ready = {
            id(o) not in states or states[id(o)]["stage"].name == "READY"
            for o in self.optimizers
        }
        if len(ready) > 1:
            return None
        return "scaled" if ready != {False} else "unscaled"

    def factor(self) -> float:
        """What gradients are multiples of by now: 1 / scale once they are unscaled."""
        return 1 / self.scale() if self.stage() == "unscaled" else 1.0


START = "the start"
OPTIMIZER, SCALER = "optimizer's settings are", "GradScaler is"
HOOKS = "hooks are"
MODES = "model's modules are", "modes are"
PARTED = "model's parameters are", "model's modules are"
SKIPPED = {
    HOOKS: "gradients",
    OPTIMIZER: "optimizer",
    **dict.fromkeys(MODES, "modes"),
}
PARTS = (
    " Build the same model on all ranks; ranks that hold other parts of one (pipeline "
    "stages) need their own group=."
)
REGISTER = " Register what changes a result on every rank, or on none."
STEER = (
    " Give every rank the same; and what steers it, such as a scheduler's loss, must "
    "be one value: reduce it over the ranks, as watch.mean does."
)
SCALE = (
    " One rank saw an overflow and skipped its step, the other did not: gradients must "
    "be synchronised before the scaler looks, or use ShardedGradScaler."
)


def _is_plain(value) -> bool:
    """Whether its text is its value; a function's or an object's holds an address."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | str | torch.Tensor)
