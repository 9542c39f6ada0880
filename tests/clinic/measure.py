"""Measure the diagnosis on real logs: ``python tests/clinic/measure.py``.

A row names the cases that are a right answer. If it names none, the clinic has no such
case, and "not known" is right. ``"healthy": true`` means that nothing is wrong.

Signs are written for ``logs/dev.jsonl``, so its misses are printed; of all other sets,
only figures are. ``logs/fresh*.jsonl`` are sets that have not been looked at: put a new
one there, and ``--record`` writes the figures of all sets to book/_data/diagnose.json,
which the page shows. A set is no longer fresh once a sign was changed for it: then
rename it, and say in ``SEEN`` when it was looked at.

``logs/healthy`` holds logs of runs in which nothing is wrong, our own and some that
others quote (``logs/healthy_sources.txt``).
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from allranks import clinic
from allranks.base.paths import ROOT
from allranks.diagnose.suspects import SHOWN, diagnose
from allranks.diagnose.text import Log

LOGS = Path(__file__).parent / "logs"
DATA = ROOT / "book" / "_data" / "diagnose.json"
DEV = "dev"
SEEN = {  # when each set was looked at for tuning; any other set is fresh
    DEV: "always: signs are written for these",
    "heldout": "held out at first, looked at since; labels older than the last cases",
    "heldout4": "held out at first, looked at since; labels older than the last cases",
}
COUNTS = "known", "first", "shown", "unknown", "guessed", "healthy", "alarms"


@dataclass
class Figures:
    """How well some logs were diagnosed.

    Attributes:
        known: logs that have a case.
        first: those of ``known`` whose right case was named first.
        shown: those of ``known`` whose right case was among those shown.
        unknown: logs that have no case.
        guessed: those of ``unknown`` for which a case was named.
        healthy: logs in which nothing is wrong.
        alarms: those of ``healthy`` for which a case was named.
        misses: (row, cases named) for each log that was not diagnosed right.
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
        """Return the figures only, because a fresh log must not be seen."""
        return (
            f"{self.known} logs with a case: first {self.first} "
            f"({self.first / max(1, self.known):.1%}), among the first {SHOWN} "
            f"{self.shown} ({self.shown / max(1, self.known):.1%}); "
            f"{self.unknown} without: {self.guessed} guessed; "
            f"{self.healthy} healthy: {self.alarms} alarms"
        )


def rows(name: str) -> list[dict]:
    """Return the rows of a set of logs."""
    lines = (LOGS / f"{name}.jsonl").read_text("utf8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def healthy() -> dict[str, str]:
    """Return the logs of runs that went well, by name."""
    return {p.name: p.read_text("utf8") for p in sorted((LOGS / "healthy").glob("*"))}


def sets() -> list[str]:
    """Return the names of all sets of logs, those already looked at first."""
    fresh = sorted(path.stem for path in LOGS.glob("fresh*.jsonl"))
    return [*SEEN, *fresh]


def measure(found: Iterable[dict], cases: list[clinic.Specimen]) -> Figures:
    """Diagnose each row, and count how well that works."""
    figures = Figures()
    for row in found:
        suspects = diagnose(Log(("log", row["text"])), cases)
        names = [suspect.case.slug for suspect in suspects[:SHOWN]]
        right = not names
        if row.get("healthy"):
            figures.healthy += 1
            figures.alarms += 0 if right else 1
        elif row["accept"]:
            right = names[:1] != [] and names[0] in row["accept"]
            figures.known += 1
            figures.first += 1 if right else 0
            figures.shown += 0 if set(names).isdisjoint(row["accept"]) else 1
        else:
            figures.unknown += 1
            figures.guessed += 0 if right else 1
        if not right:
            figures.misses.append((row, names))
    return figures


def alarms(logs: dict[str, str], cases: list[clinic.Specimen]) -> dict[str, list]:
    """Return the cases that are named, wrongly, for healthy logs."""
    found = {}
    for name, text in logs.items():
        for suspect in diagnose(Log((name, text)), cases):
            lines = [hit.text for _, hit in suspect.hits]
            found.setdefault(name, []).append((suspect.case.slug, lines))
    return found


def counted(name: str, figures: Figures) -> dict:
    """Return the counts of a set in the form that the page reads."""
    counts = {count: getattr(figures, count) for count in COUNTS}
    return {"name": name, "seen": SEEN.get(name, ""), **counts}


def main() -> None:
    """Print the figures, and for the development set its misses too."""
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
            print(*named.items(), sep="\n", end="\n" if named else "")
            for row, names in figures.misses:
                print(f"- {row['accept'] or 'not known'}, not {names}: {row['link']}")
        print(f"{name}: {figures}")
        found.append(counted(name, figures))
    if options.record:
        DATA.write_text(json.dumps({"sets": found}, indent=1) + "\n", "utf8")


if __name__ == "__main__":
    sys.exit(main())
