"""What all ranks can have wrong alike: dead weights, a mode left behind."""

import torch

from .calls import hint
from .constants import differ
from .digests import fetch, local, number
from .exchange import GuardError, names

EVALUATES = (
    "the model was in training at an earlier check and now it is in evaluation, on all "
    "ranks, and still gets gradients: was train() forgotten after a validation? No "
    "dropout and no batch statistics from here on."
)
UNREACHED = (
    "no gradient has reached the model's parameters at the last two checks: is another "
    "copy of it trained, does the forward run without gradients, or does FSDP2 wait, "
    "since set_requires_gradient_sync(True) did not come before the last backward?"
)
APART = (
    "{} is not the same on all ranks: {}. If it is meant to be, build the model and "
    "the data set from the same settings on all ranks."
)


class Health:
    """Looks at one rank's own state, and lets all ranks speak of it alike.

    Args:
        checks: the guard that asks.
    """

    def __init__(self, checks):
        self.checks, self.trained = checks, False
        self.dead = self.hint = ""
        self.silent = 0  # checks in a row that found no gradient

    def numbers(self, where: str, sketches: list[torch.Tensor]) -> list[int]:
        """Dead parameters; how step() is called; floats that modules hold.

        Args:
            sketches: of gradients, on the CPU. Where they are finite, weights are too.
        """
        checks, model = self.checks, self.checks.model
        if where == "the start":
            return [0] * 6
        suspect = any(not x.isfinite().all() for x in sketches)
        self.dead = self._dead() if suspect or not sketches else ""
        unsynced = not getattr(model, "require_forward_param_sync", True)
        text = checks.attributes.constant() if checks.steps <= 8 else ""
        # Not the wrapper's own flag: eval() may be called on what it wraps.
        trains = any(m.training for m in model.modules() if not any(m.children()))
        mode = int(trains) * 2 + int(self.trained)
        self.trained = trains
        silent = "gradients" not in checks.skip and checks.local.armed
        waits = checks.local.units and not any(
            p.grad is not None for p in checks.parameters().values()
        )
        silent = silent and bool(waits or not checks.local.reached())
        self.silent = self.silent + 1 if silent else 0
        found = bool(self.dead), checks.calls.again, unsynced, mode, self.silent
        return [*map(int, found), number(text)]

    def _dead(self) -> str:
        """Name a trained parameter that holds NaN: a training that is over."""
        found = [
            (name, local(p).isnan().sum())
            for name, p in self.checks.parameters().items()
            if p.requires_grad and p.is_floating_point() and not p.is_meta
        ]
        counts = fetch([count for _, count in found])
        bad = [(n, int(c)) for (n, _), c in zip(found, counts, strict=True) if c]
        if not bad:
            return ""
        more = f" and {len(bad) - 1} more of {len(found)}" if bad[1:] else ""
        return f"{bad[0][0]}{more}"

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Raise if weights are NaN; warn of what may be meant."""
        checks, exchange = self.checks, self.checks.exchange
        dead = [bool(row[0]) for row in rows]
        if any(dead):
            texts = exchange.texts(self.dead)
            who = [r for r, bad in zip(exchange.ranks, dead, strict=True) if bad]
            raise GuardError(
                f"{where}: parameters are NaN on {names(who)}: "
                f"{next(text for text in texts if text)}. The training is over: every "
                "later result is NaN too. Go back to a checkpoint; look at the loss, "
                "the rate and the data of the steps before."
            )
        self.hint = hint(max(row[1] for row in rows), any(row[2] for row in rows))
        if all(row[3] == 1 for row in rows) and "modes" not in checks.skip:
            checks.tell(EVALUATES)
        if all(row[4] == 2 for row in rows):
            checks.tell(UNREACHED)
        if len({row[5] for row in rows}) > 1 and "modes" not in checks.skip:
            texts = exchange.texts(checks.attributes.constant())
            checks.tell(another(exchange, texts))


def another(exchange, texts: list[str]) -> str:
    """Say which setting is another one on some ranks; "" if none is."""
    found = differ(texts, exchange.ranks)
    if not found:
        return ""
    groups = exchange.split(found[1]).items()
    said = ", ".join(f"{value} on {names(ranks)}" for value, ranks in groups)
    return APART.format(found[0], said)
