"""Invariant: ranks agree on the model's structure, modes and hooks, and what steps it.

Each ``Topic`` is written as lines of text. A check exchanges a hash of each text, and
the texts only if hashes differ. Then it names the first line that differs.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from allranks.guard import configuration
from allranks.guard.digests import layout, number
from allranks.guard.exchange import START, Exchange, GuardError
from allranks.guard.hooks import ForwardHooks, ProgramHooks
from allranks.guard.targets import Targets

NOTHING = "nothing"  # the line of a rank whose text is shorter
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
    "be synchronized before the scaler looks, or use ShardedGradScaler."
)
SCALE_JOINED = (
    " Each called update() as often, and the scale grows after a number of calls. Keep "
    "it from growing (set_growth_interval(1 << 30)), or give all ranks equally many "
    "batches."
)


class Topic(NamedTuple):
    """Something that is the same on all ranks."""

    noun: str  # as messages call it
    text: Callable[[], str]  # writes this rank's lines about it
    advice: Callable[[Sequence[str]], str]  # on a line that differs, given each rank's
    skip: str = ""  # the word in ``Guard(skip=…)`` that leaves it out
    late: bool = False  # whether it may still change before the first step
    verb: str = "are"


class Agreement:
    """Compares a model's structure, optimizers and GradScaler between ranks."""

    def __init__(
        self,
        exchange: Exchange,
        targets: Targets,
        forward: ForwardHooks,
        hooks: ProgramHooks,
    ) -> None:
        self.exchange, self.targets = exchange, targets
        self.forward = forward
        self.joined_steps = ""  # how many steps ranks made inside of Join
        self.host: dict[int, torch.Tensor] = {}  # options that are tensors, on the CPU
        self.topics = (
            Topic("model's parameters", self._parameters, _missing),
            Topic(
                "model's modules",
                self._modules,
                lambda lines: _missing(lines) or configuration.why(lines[0]),
                skip="modes",
            ),
            Topic("hooks", hooks.text, lambda _: REGISTER, skip="gradients", late=True),
            Topic(
                "modes",
                self._modes,
                lambda lines: configuration.why(lines[0]),
                skip="modes",
                late=True,
            ),
            Topic(
                "optimizer's settings",
                self.optimizers,
                lambda _: STEER,
                skip="optimizer",
            ),
            Topic("GradScaler", self._scaler, self._scaler_advice, verb="is"),
        )

    def numbers(self, where: str) -> list[int]:
        """Return a hash of each topic's text, for the exchange."""
        return [number(self._text(topic, where)) for topic in self.topics]

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Raise for the first line that is not the same on all ranks.

        Args:
            where: what this check is called.
            rows: what ``numbers`` returned, by rank.
        """
        for topic, hashes in zip(self.topics, zip(*rows, strict=True), strict=True):
            if len(set(hashes)) == 1 or topic.skip in self.targets.skip:
                continue
            texts = self.exchange.texts(self._text(topic, where))
            lines = [text.split("\n") if text else [] for text in texts]
            longest = max(map(len, lines))
            padded = [own + [NOTHING] * (longest - len(own)) for own in lines]
            # One line of each rank, at the same place of its text.
            abreast = zip(*padded, strict=True)
            differs = next(line for line in abreast if len(set(line)) > 1)
            raise GuardError(
                f"{where}: the {topic.noun} {topic.verb} not the same on all ranks: "
                f"{self.exchange.by_ranks(differs, '; ')} "
                f"({self.exchange.suspects(differs)}).{topic.advice(differs)}"
            )

    def _text(self, topic: Topic, where: str) -> str:
        return "" if topic.late and where == START else topic.text()

    def _parameters(self) -> str:
        """Write a line for each parameter, about its form and not about its values."""
        lines = []
        for name, p in self.targets.parameters().items():
            words = [name, str(tuple(p.shape)), str(p.dtype)]
            words.append(f"requires_grad={p.requires_grad}")
            words += [layout(p)] if layout(p) else []
            words += ["on meta"] if p.is_meta else []
            lines.append(" ".join(words))
        return "\n".join(lines)

    def _modules(self) -> str:
        return configuration.describe(self.targets.model, self.targets.ignored)

    def _modes(self) -> str:
        model, ignored = self.targets.model, self.targets.ignored
        return configuration.modes(model, ignored, self.forward.text())

    def optimizers(self) -> str:
        """Write the optimizers' classes, which parameters they hold, and options."""
        kinds = [
            f"optimizer {i} is {type(optimizer).__name__}"
            for i, optimizer in enumerate(self.targets.optimizers)
        ]
        options = [
            f"optimizer {i} group {j}: {key}={self._plain(value)}"
            for i, j, key, value in self._options()
        ]
        return "\n".join(kinds + self._members() + options)

    def _members(self) -> list[str]:
        """Say which group of which optimizer holds each parameter."""
        holders: dict[int, list[str]] = {}
        if self.targets.dealt:
            return []  # each rank's optimizer holds a part of its own
        for i, j, group in self.targets.groups():
            for p in group["params"]:
                holders.setdefault(id(p), []).append(f"group {j} of optimizer {i}")
        return [
            f"{name} is in {' and '.join(holders.get(id(p), ['no optimizer']))}"
            for name, p in self.targets.parameters().items()
            if holders
        ]

    def _options(self) -> Iterator[tuple[int, int, str, Any]]:
        """Yield optimizer, group, name and value of what can be compared."""
        for i, j, group in self.targets.groups():
            for key, value in sorted(group.items()):
                if key not in ("params", "param_names") and _is_plain(value):
                    yield i, j, key, value

    def _plain(self, value: Any) -> Any:
        """Return an option, with numbers in place of tensors."""
        if isinstance(value, list | tuple):
            return [self._plain(item) for item in value]
        if torch.is_tensor(value):
            return self.host.get(id(value), value).tolist()
        return value

    def tensors(self) -> list[torch.Tensor]:
        """List the options that are tensors, perhaps on another device, and the scale.

        They travel to the CPU with all that a check needs, in one copy.
        """
        values = [value for *_, value in self._options()]
        flat = [x for v in values for x in (v if isinstance(v, list | tuple) else [v])]
        flat.append(getattr(self.targets.scaler, "_scale", None))
        return [x for x in flat if torch.is_tensor(x)]

    def keep(self, host: list[torch.Tensor]) -> None:
        """Keep what ``tensors`` returned, now on the CPU, until the next check."""
        self.host = dict(zip(map(id, self.tensors()), host, strict=True))

    def scale(self) -> float:
        """Return the GradScaler's scale, without a copy if it is on the CPU already."""
        scale = self.host.get(id(getattr(self.targets.scaler, "_scale", None)))
        return float(self.targets.scaler.get_scale() if scale is None else scale)

    def _scaler(self) -> str:
        if self.targets.scaler is None:
            return "scale=none"
        return f"GradScaler's scale={self.scale():.9g}"

    def _scaler_advice(self, _lines: Sequence[str]) -> str:
        if self.joined_steps:
            return f" {self.joined_steps.strip()}{SCALE_JOINED}"
        return SCALE

    def stage(self) -> str | None:
        """Return "scaled", "unscaled" or "plain" for the gradients; None if mixed."""
        scaler = self.targets.scaler
        if scaler is None or not scaler.is_enabled():
            return "plain"
        states = getattr(scaler, "_per_optimizer_states", {})
        # READY means that unscale_() has not been called since the last update().
        ready = {
            id(o) not in states or states[id(o)]["stage"].name == "READY"
            for o in self.targets.optimizers
        }
        if len(ready) > 1:
            return None
        return "scaled" if ready != {False} else "unscaled"

    def factor(self) -> float:
        """Return the gradients' factor: 1 / scale once they are unscaled, 1 before."""
        return 1 / self.scale() if self.stage() == "unscaled" else 1.0


def _missing(lines: Sequence[str]) -> str:
    """Return advice on a line that some ranks do not have; "" if all have one."""
    return PARTS if NOTHING in lines else ""


def _is_plain(value: Any) -> bool:
    """Tell whether a value's text is complete; an object's may hold an address."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | str | torch.Tensor)
