"""Invariant: ranks agree on the model's structure, the optimizer and the scaler."""

from collections.abc import Iterator
from typing import Any

import torch

from allranks.guard import configuration
from allranks.guard.digests import layout, number
from allranks.guard.exchange import Exchange, GuardError
from allranks.guard.hooks import ForwardHooks, ProgramHooks
from allranks.guard.training import Training

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


SCALE_JOINED = (
    " Each called update() as often, and the scale grows after a number of calls. Keep "
    "it from growing (set_growth_interval(1 << 30)), or give all ranks equally many "
    "batches."
)


class Settings:
    """Compares a model's structure, optimizers and GradScaler between ranks."""

    def __init__(
        self,
        exchange: Exchange,
        training: Training,
        forward: ForwardHooks,
        hooks: ProgramHooks,
    ) -> None:
        self.exchange, self.training = exchange, training
        self.forward, self.hooks = forward, hooks
        self.unequal = ""  # how many steps ranks made inside of Join
        self.host: dict[int, torch.Tensor] = {}  # settings that are tensors, on the CPU

    def _options(self) -> Iterator[tuple[int, int, str, Any]]:
        """Yield optimizer, group, name and value of what can be compared."""
        for i, j, group in self.training.groups():
            for key, value in sorted(group.items()):
                if key not in ("params", "param_names") and _is_plain(value):
                    yield i, j, key, value

    def loose(self) -> list[torch.Tensor]:
        """List the tensors among the settings, which may be on another device."""
        values = [value for *_, value in self._options()]
        flat = [x for v in values for x in (v if isinstance(v, list | tuple) else [v])]
        flat.append(getattr(self.training.scaler, "_scale", None))
        return [x for x in flat if torch.is_tensor(x)]

    def land(self, host: list[torch.Tensor]) -> None:
        """Take what ``loose`` returned, now on the CPU, and keep it until the next."""
        self.host = dict(zip(map(id, self.loose()), host, strict=True))

    def scale(self) -> float:
        """Return the GradScaler's scale, without a copy if it is on the CPU already."""
        found = self.host.get(id(getattr(self.training.scaler, "_scale", None)))
        return float(self.training.scaler.get_scale() if found is None else found)

    def _plain(self, value: Any) -> Any:
        """Return a setting, with numbers in place of tensors."""
        if isinstance(value, list | tuple):
            return [self._plain(item) for item in value]
        if torch.is_tensor(value):
            return self.host.get(id(value), value).tolist()
        return value

    def _members(self) -> list[str]:
        """Say which group of which optimizer holds each parameter."""
        held: dict[int, list[str]] = {}
        if self.training.dealt:
            return []
        for i, j, group in self.training.groups():
            for p in group["params"]:
                held.setdefault(id(p), []).append(f"group {j} of optimizer {i}")
        return [
            f"{name} is in {' and '.join(held.get(id(p), ['no optimizer']))}"
            for name, p in self.training.parameters().items()
            if held
        ]

    def _parameters(self) -> Iterator[str]:
        """Yield a line for each parameter, about its form and not about its values."""
        for name, p in self.training.parameters().items():
            words = [name, str(tuple(p.shape)), str(p.dtype)]
            words.append(f"requires_grad={p.requires_grad}")
            words += [layout(p)] if layout(p) else []
            words += ["on meta"] if p.is_meta else []
            yield " ".join(words)

    def _optimizers(self) -> list[str]:
        """List the optimizers' classes, the parameters in their groups, and options."""
        kinds = [
            f"optimizer {i} is {type(optimizer).__name__}"
            for i, optimizer in enumerate(self.training.optimizers)
        ]
        options = [
            f"optimizer {i} group {j}: {key}={self._plain(value)}"
            for i, j, key, value in self._options()
        ]
        return kinds + self._members() + options

    def texts(self, start: bool = False) -> dict[str, str]:
        """Write all that is compared, except modes and hooks at the ``start``.

        Those may still change before the first step.
        """
        model, ignored = self.training.model, self.training.ignored
        modes = hooks = ""
        if not start:
            hooks = self.hooks.text()
            modes = configuration.modes(model, ignored, self.forward.text())
        scaled = self.training.scaler is not None
        return {
            "model's parameters are": "\n".join(self._parameters()),
            "model's modules are": configuration.describe(model, ignored),
            HOOKS: hooks,
            "modes are": modes,
            OPTIMIZER: "\n".join(self._optimizers()),
            SCALER: f"GradScaler's scale={self.scale():.9g}"
            if scaled
            else "scale=none",
        }

    def numbers(self, where: str) -> list[int]:
        """Return the hashes of the texts, for the exchange."""
        return [number(text) for text in self.texts(where == START).values()]

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Raise for the first line of the texts that is not the same on all ranks."""
        for (what, text), values in zip(
            self.texts(where == START).items(), zip(*rows, strict=True), strict=True
        ):
            if len(set(values)) == 1 or SKIPPED.get(what) in self.training.skip:
                continue
            texts = self.exchange.texts(text)
            lines = [own.split("\n") if own else [] for own in texts]
            longest = max(map(len, lines))
            for own in lines:
                own += ["nothing"] * (longest - len(own))
            columns = zip(*lines, strict=True)
            column = next(c for c in columns if len(set(c)) > 1)
            blame = self.exchange.suspects(column)
            why = PARTS if "nothing" in column and what in PARTED else ""
            if what in MODES:
                why = why or configuration.why(column[0])
            scale = f" {self.unequal.strip()}{SCALE_JOINED}" if self.unequal else SCALE
            why = {SCALER: scale, HOOKS: REGISTER, OPTIMIZER: STEER}.get(what, why)
            raise GuardError(
                f"{where}: the {what} not the same on all ranks: "
                f"{self.exchange.by_ranks(column, '; ')} ({blame}).{why}"
            )

    def stage(self) -> str | None:
        """Return "scaled", "unscaled" or "plain" for the gradients; None if mixed."""
        scaler = self.training.scaler
        if scaler is None or not scaler.is_enabled():
            return "plain"
        states = getattr(scaler, "_per_optimizer_states", {})
        ready = {
            id(o) not in states or states[id(o)]["stage"].name == "READY"
            for o in self.training.optimizers
        }
        if len(ready) > 1:
            return None
        return "scaled" if ready != {False} else "unscaled"

    def factor(self) -> float:
        """Return the gradients' factor: 1 / scale once they are unscaled, 1 before."""
        return 1 / self.scale() if self.stage() == "unscaled" else 1.0


def _is_plain(value: Any) -> bool:
    """Tell whether a value's text is complete; an object's may hold an address."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | str | torch.Tensor)
