"""What a gradient is that is not the mean of the ranks' local ones."""

from .exchange import Exchange, GuardError, names


def judge(
    exchange: Exchange,
    where: str,
    found: list,
    factor: float,
    scaled: bool,
    tolerance: float,
) -> None:
    """Raise for the first parameter whose gradient is not the mean; say what it is."""

    def wrong(by: float) -> list:
        return [
            f
            for f in found
            if ((f[1][:, 0] - by * f[2]).abs() > by * tolerance * f[3] + 1e-30).any()
        ]

    bad = wrong(factor)
    if not bad:
        return
    top = sum(float((rows[:, 0] * mean).sum()) for _, rows, mean, _ in found)
    ratio = top / max(sum(float((m * m).sum()) for _, _, m, _ in found), 1e-38)
    if ratio > 0 and not wrong(ratio):  # all by the same number
        if not scaled and ratio < factor:
            return  # as clip_grad_norm_ leaves them
        if scaled and ratio < factor:
            why = "Clipped while still scaled: call scaler.unscale_(optimizer) before."
        elif abs(ratio / factor - exchange.size) < 0.05 * exchange.size:
            why = "It is their sum: divide by the number of ranks."
        else:
            why = "They were changed, or not zeroed, since the last step."
        raise GuardError(
            f"{where}: every gradient is {ratio / factor:.4g} times the mean of the "
            f"ranks' local gradients. {why}"
        )
    name, rows, mean, _ = bad[0]
    alone = [
        rank
        for rank, row in zip(exchange.ranks, rows, strict=True)
        if abs(row[0] - factor * row[2]) <= factor * tolerance * row[3].sqrt()
    ]
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    off = max(
        float((row[0] - factor * m).abs() / (factor * s).clamp_min(1e-38))
        for row, m, s in zip(rows, mean, bad[0][3], strict=True)
    )
    cause = (
        f"it is the local gradient on {names(alone)}: nobody synchronises it"
        if len(alone) == exchange.size > 1
        else "a collective was paired with another one, or gradients were changed, "
        "clipped or not zeroed between backward and here"
    )
    raise GuardError(
        f"{where}: the gradient of {name}{more} is not the mean of the ranks' local "
        f"gradients: it is off by {off:.3g} times their norm; {cause}."
    )
