"""``{diagnose-figures}``: how often the diagnosis is right, set by set, with intervals.

The counts are those of book/_data/diagnose.json (``tests/clinic/measure.py --record``
writes it); shares and their intervals are computed here, at each build. First comes a
sentence on the logs that no tuning has seen, if there are any.
"""

import json
import math
from pathlib import Path

from clinic_cases import ClinicDirective
from docutils import nodes

DATA = "book/_data/diagnose.json"
Z = 1.959964  # of the normal distribution, 95 %
COLUMNS = [  # title, what is counted, among how many
    ("right case first", "first", "known"),
    ("among the three shown", "shown", "known"),
    ("other failures taken for one of ours", "guessed", "unknown"),
    ("healthy logs with an alarm", "alarms", "healthy"),
]


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, after Wilson (1927).

    >>> [round(100 * end) for end in wilson(54, 68)]
    [68, 87]
    """
    share, square = count / total, Z * Z
    middle = (share + square / (2 * total)) / (1 + square / total)
    spread = math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    half = Z * spread / (1 + square / total)
    return max(0.0, middle - half), min(1.0, middle + half)


def share(one: dict, count: str, total: str) -> str:
    """A share in words: ``54 of 68 (79 %, 68 to 87)``."""
    if not one[total]:
        return "none"
    low, high = wilson(one[count], one[total])
    percent = 100 * one[count] / one[total]
    words = f"{one[count]} of {one[total]}"
    return f"{words} ({percent:.0f} %, {100 * low:.0f} to {100 * high:.0f})"


def headline(fresh: list[dict]) -> str:
    """The figure that counts: on logs that nobody tuned on."""
    if not fresh:
        return (
            "All of these sets have been looked at while signs were written, so expect "
            "less on your own log."
        )
    sums = {key: sum(one[key] for one in fresh) for _, *keys in COLUMNS for key in keys}
    first, shown, guessed, alarms = (share(sums, *keys) for _, *keys in COLUMNS)
    return (
        f"On logs that nobody had looked at, the right case comes first in {first}, "
        f"and is among the three that are shown in {shown}. Of failures that are no "
        f"case here, {guessed} were taken for one; of healthy logs, {alarms} got an "
        "alarm. "
        "In parentheses: the share, and its 95 % interval (Wilson)."
    )


class DiagnoseFigures(ClinicDirective):
    """The sentence and the table."""

    optional_arguments = 0

    def run(self) -> list[nodes.Node]:
        """Read the counts; the page is built again when they change."""
        self.env.note_dependency(DATA)
        sets = json.loads(Path(self.env.srcdir, DATA).read_text("utf8"))["sets"]
        group = nodes.tgroup(cols=2 + len(COLUMNS))
        group += [nodes.colspec(colwidth=width) for width in (10, 20, 18, 18, 17, 17)]
        head, body = nodes.thead(), nodes.tbody()
        titles = "set of logs", "seen by tuning", *(title for title, *_ in COLUMNS)
        head += row(titles)
        for one in sets:
            cells = (share(one, *keys) for _, *keys in COLUMNS)
            body += row([one["name"], one["seen"] or "never", *cells])
        group += [head, body]
        table = nodes.table("", group, classes=["colwidths-given"])
        text = headline([one for one in sets if not one["seen"]])
        return [
            nodes.paragraph("", text),
            nodes.container("", table, classes=["x-scroll"]),
        ]


def row(cells) -> nodes.row:
    """A row of texts."""
    entries = [nodes.entry("", nodes.paragraph("", text)) for text in cells]
    return nodes.row("", *entries)


def setup(app) -> dict:
    """Add the directive."""
    app.add_directive("diagnose-figures", DiagnoseFigures)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
