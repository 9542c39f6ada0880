"""Pictures of chapter 5: a run that was stopped, and goes on."""

from allranks.base.picture import Picture
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import Plot, claim, linear, plate, read, rule


def continued(output: str) -> Picture:
    """Draw the loss of each epoch before a stop, and after it.

    Args:
        output: of the run, and then of the one that resumed it.
    """
    pattern = r"^\$ (.+)|epoch=(\d+) loss=([\d.]+)"
    runs: list[list[tuple[int, float]]] = []
    for line in read(output, pattern, 4):
        if line[1]:
            runs.append([])
        elif runs:
            runs[-1].append((int(line[2]), float(line[3])))
    if len(runs) != 2 or not all(runs):
        raise ValueError(f"two runs with lines such as epoch=8 loss=0.1 wanted: {runs}")
    first, second = runs
    title = claim(
        second[0][0] == first[-1][0] + 1 and second[0][1] < first[-1][1],
        f"Epoch {second[0][0]} picks up where epoch {first[-1][0]} left off",
    )

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 262)
        last = second[-1][0]
        most = -(-max(loss for _, loss in first) // 0.5) * 0.5
        ticks = [i / 2 for i in range(round(2 * most) + 1)]
        plot = Plot(
            sheet, linear(range(last + 1), "epoch"), linear(ticks, "loss"), 180, 64, 44
        )
        # The stop is between two epochs: only there does the script save.
        x = plot.at(last - 0.5, 0)[0]
        rule(sheet, f"M{x:.4g} {plot.top}V{plot.bottom}", "5 4", "currentColor")
        sheet.words(x, plot.top - 8, "stopped and resumed", "end")
        plot.line(first, thick=2.5)
        plot.line([first[-1], *second], f"{second[-1][1]:.3f}", "2 4", 2, bold=True)
        return sheet

    said = "; ".join(f"epoch {epoch} {loss:g}" for epoch, loss in [*first, *second])
    return plate(title, f"Losses: {said}. Stopped after epoch {first[-1][0]}.", draw)
