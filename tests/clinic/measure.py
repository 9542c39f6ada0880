"""How well the diagnosis works on real logs: ``python tests/clinic/measure.py``.

A row names the cases that are a right answer; none means that the clinic does not have
it, and "not known" is right; ``"healthy": true`` means that nothing is wrong.

``logs/dev.jsonl`` is what signs are written for: its misses are printed. Of the others
only figures are. ``logs/fresh*.jsonl`` are those that nobody has looked at: put the
file there, and ``--record`` writes the figures of all sets to book/_data/diagnose.json,
which the page shows. As soon as a sign is changed for it, it is fresh no more: rename
it, and say in ``SEEN`` when it was looked at.

``logs/healthy`` are runs in which nothing is wrong, our own and those that others quote
(``logs/healthy_sources.txt``).
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from allranks import clinic
from allranks.diagnose.suspects import SHOWN, diagnose
from allranks.diagnose.text import Log
from allranks.paths import ROOT

LOGS = Path(__file__).parent / "logs"
DATA = ROOT / "book" / "_data" / "diagnose.json"
DEV = "dev"
SEEN = {  # when tuning saw a set; what is not here is fresh
    DEV: "always: signs are written for these",
    "heldout": "held out at first, looked at since; labels older than the last cases",
    "heldout4": "held out at first, looked at since; labels older than the last cases",
}
COUNTS = "known", "first", "shown", "unknown", "guessed", "healthy", "alarms"


@dataclass
class Figures:
    """What came of some logs.

    Attributes:
        known: how many have a case; of these ``first`` and ``shown`` count those whose
            right case came first, and among those shown.
        unknown: how many have none; for ``guessed`` of them one was named.
        healthy: in how many nothing is wrong; ``alarms``: and something was named.
        misses: (row, what was named) of those that were not first, and of guesses.
    """

    known: int = 0
    first: int = 0
    shown: int = 0
    unknown: int = 0
    guessed: int = 0
    healthy: int = 0
    alarms: int = 0
    misses: list[tuple[dict, list[str]]] = field(default_factory=list)

    def __str__(self) -> str:
        """Only figures: what a log says is not shown."""
        return (
            f"{self.known} logs with a case: first {self.first} "
            f"({self.first / max(1, self.known):.1%}), among the first {SHOWN} "
            f"{self.shown} ({self.shown / max(1, self.known):.1%}); "
            f"{self.unknown} without: {self.guessed} guessed; "
            f"{self.healthy} healthy: {self.alarms} alarms"
        )


def rows(name: str) -> list[dict]:
    """The rows of a set of logs."""
    lines = (LOGS / f"{name}.jsonl").read_text("utf8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def healthy() -> dict[str, str]:
    """Logs of runs that went well, by name."""
    return {p.name: p.read_text("utf8") for p in sorted((LOGS / "healthy").glob("*"))}


def sets() -> list[str]:
    """All sets of logs: what was developed on, what was looked at, what is fresh."""
    fresh = sorted(path.stem for path in LOGS.glob("fresh*.jsonl"))
    return [*SEEN, *fresh]


def measure(found: Iterable[dict], cases: list[clinic.Specimen]) -> Figures:
    """Diagnose each row."""
    figures = Figures()
    for row in found:
        suspects = diagnose(Log(("log", row["text"])), cases)
        names = [suspect.case.slug for suspect in suspects[:SHOWN]]
        right = not names
        if row.get("healthy"):
            figures.healthy += 1
            figures.alarms += not right
        elif row["accept"]:
            right = names[:1] != [] and names[0] in row["accept"]
            figures.known += 1
            figures.first += right
            figures.shown += not set(names).isdisjoint(row["accept"])
        else:
            figures.unknown += 1
            figures.guessed += not right
        if not right:
            figures.misses.append((row, names))
    return figures


def alarms(logs: dict[str, str], cases: list[clinic.Specimen]) -> dict[str, list]:
    """What is named for logs in which nothing is wrong."""
    found = {}
    for name, text in logs.items():
        for suspect in diagnose(Log((name, text)), cases):
            lines = [hit.text for _, hit in suspect.hits]
            found.setdefault(name, []).append((suspect.case.slug, lines))
    return found


def counted(name: str, figures: Figures) -> dict:
    """The counts of a set, as the page takes them."""
    counts = {count: getattr(figures, count) for count in COUNTS}
    return {"name": name, "seen": SEEN.get(name, ""), **counts}


def main() -> None:
    """Print the figures; for the set that one develops on, the misses too."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--held-out", action="store_true", help="figures of all sets")
    parser.add_argument("--record", action="store_true", help="and write the page's")
    options = parser.parse_args()
    cases, found = clinic.folder(ROOT / "clinic"), []
    for name in sets() if options.held_out or options.record else [DEV]:
        figures = measure(rows(name), cases)
        if name == DEV:
            good = healthy()
            named = alarms(good, cases)
            figures.healthy, figures.alarms = len(good), len(named)
            print(*named.items(), sep="\n", end="\n" * bool(named))
            for row, names in figures.misses:
                print(f"- {row['accept'] or 'not known'}, not {names}: {row['link']}")
        print(f"{name}: {figures}")
        found.append(counted(name, figures))
    if options.record:
        DATA.write_text(json.dumps({"sets": found}, indent=1) + "\n", "utf8")


if __name__ == "__main__":
    sys.exit(main())
