"""What a gradient is that is not the mean of the ranks' local ones."""

import torch

from .exchange import Exchange, GuardError, names

BY_HAND = (
    "the program itself sums the gradients of all ranks, and does not divide. That is "
    "right if each rank divides its loss by the number of samples on all ranks. If by "
    "its own, divide the sum by the number of ranks."
)


class Summed(GuardError):
    """Every gradient is the sum of the ranks' own."""


def judge(
    exchange: Exchange,
    where: str,
    factor: float,
    scaled: bool,
    tolerance: float,
    hint: str,
    found: list,
) -> None:
    """Raise unless each gradient is ``factor`` times the mean of the local ones.

    All may be smaller by one common number, as clip_grad_norm_ leaves them.

    Args:
        factor: 1, or 1 / scale once a GradScaler has unscaled.
        scaled: a GradScaler's factor is still in them, so none may be clipped.
        tolerance: relative to the norm of the local gradients.
        hint: what it may come from, if ``step()`` is called where it should not be.
        found: what ``gradients.table`` has found.
    """

    def wrong(by: float) -> list:
        return [
            name
            for name, rows, mean, scale in found
            if ((rows[:, :2] - by * mean).abs() > by * tolerance * scale + 1e-30).any()
        ]

    bad = wrong(factor)
    if not bad:
        return
    dot = sum(float((rows[:, :2] * mean).sum()) for _, rows, mean, _ in found)
    ratio = dot / max(sum(float((m * m).sum()) for _, _, m, _ in found), 1e-38)
    if ratio > 0 and not wrong(ratio):  # all by the same number
        if not scaled and ratio < factor:
            return  # as clip_grad_norm_ leaves them
        kind = GuardError
        if scaled and ratio < factor:
            why = "Clipped while still scaled: call scaler.unscale_(optimizer) before."
        elif hint:
            why = hint
        elif abs(ratio / factor - exchange.size) < 0.05 * exchange.size:
            why, kind = "It is their sum: divide by the number of ranks.", Summed
        else:
            why = "They were changed, or not zeroed, since the last step."
        raise kind(
            f"{where}: every gradient is {ratio / factor:.4g} times the mean of the "
            f"ranks' local gradients. {why}"
        )
    name, rows, mean, scale = next(item for item in found if item[0] == bad[0])
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
        f"{where}: the gradient of {name}{more} is not the mean of the ranks' local "
        f"gradients: it is off by {off:.3g} times their norm{who}; {cause}."
    )


def emptied(table: torch.Tensor) -> bool:
    """Whether each gradient that backward made is gone by now, on every rank."""
    made = (table[..., 7] > 0) & (table[..., 5] != 0)
    gone = (table[..., 6] == 0) | (table[..., 2] == 0)
    return bool(made.any() and gone[made].all())
