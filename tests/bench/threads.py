"""How often the answer to a described symptom names the case that was the matter.

    python tests/bench threads FILE

tests/allranks/diagnose/answering.py says what the file looks like.
"""

import json
from pathlib import Path

from allranks import clinic
from allranks.base.paths import ROOT
from tests.allranks.diagnose.answering import answers, place, share, words


def measure(path: Path) -> str:
    """Return the shares of a file of described threads, and what it misses."""
    rows = json.loads(path.read_text("utf8"))
    answer = answers(clinic.folder(ROOT / "clinic"))
    found = [answer(words(row)) for row in rows]
    places = [place(row, some) for row, some in zip(rows, found, strict=True)]
    three, five = share(places, 3), share(places, 5)
    lines = [f"{len(rows)} threads: first three {three:.0%}, first five {five:.0%}"]
    for row, some, where in zip(rows, found, places, strict=True):
        if where is None or where > 3:
            at = f"place {where}" if where else "missed"
            lines.append(
                f"{at}: {words(row)[:100]!r} -> {', '.join(some) or 'nothing'}"
            )
    return "\n".join(lines)
