"""How well the diagnosis works on real logs: ``python tests/clinic/measure.py``.

``logs/dev.jsonl`` is what signs are written for, ``heldout.jsonl`` and
``heldout4.jsonl`` what nobody looks at: with ``--held-out`` only figures are printed. A
row names the cases that are a right answer; none means that the clinic does not have
it, and "not known" is right.
``logs/healthy`` are runs in which nothing is wrong, our own and those that others quote
(``logs/healthy_sources.txt``).
"""

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from allranks import clinic
from allranks.diagnosis import SHOWN, diagnose
from allranks.log_text import Log

ROOT = Path(__file__).resolve().parents[2]
LOGS = Path(__file__).parent / "logs"
HELD_OUT = "heldout", "heldout4"


@dataclass
class Figures:
    """What came of some logs.

    Attributes:
        known: how many have a case; of these ``first`` and ``shown`` count those whose
            right case came first, and among those shown.
        unknown: how many have none; for ``guessed`` of them one was named.
        misses: (row, what was named) of those that were not first, and of guesses.
    """

    known: int = 0
    first: int = 0
    shown: int = 0
    unknown: int = 0
    guessed: int = 0
    misses: list[tuple[dict, list[str]]] = field(default_factory=list)

    def __str__(self) -> str:
        """Only figures: what a log says is not shown."""
        return (
            f"{self.known} logs with a case: first {self.first} "
            f"({self.first / max(1, self.known):.1%}), among the first {SHOWN} "
            f"{self.shown} ({self.shown / max(1, self.known):.1%}); "
            f"{self.unknown} without: {self.guessed} guessed"
        )


def rows(name: str) -> list[dict]:
    """The rows of a set of logs."""
    lines = (LOGS / f"{name}.jsonl").read_text("utf8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def healthy() -> dict[str, str]:
    """Logs of runs that went well, by name."""
    return {p.name: p.read_text("utf8") for p in sorted((LOGS / "healthy").glob("*"))}


def measure(found: list[dict], cases: list[clinic.Case]) -> Figures:
    """Diagnose each row."""
    figures = Figures()
    for row in found:
        suspects = diagnose(Log(("log", row["text"])), cases)
        names = [suspect.case.slug for suspect in suspects[:SHOWN]]
        if row["accept"]:
            first = names[:1] != [] and names[0] in row["accept"]
            figures.known += 1
            figures.first += first
            figures.shown += not set(names).isdisjoint(row["accept"])
        else:
            first = not names
            figures.unknown += 1
            figures.guessed += not first
        if not first:
            figures.misses.append((row, names))
    return figures


def alarms(logs: dict[str, str], cases: list[clinic.Case]) -> dict[str, list]:
    """What is named for logs in which nothing is wrong."""
    found = {}
    for name, text in logs.items():
        for suspect in diagnose(Log((name, text)), cases):
            lines = [hit.text for _, hit in suspect.hits]
            found.setdefault(name, []).append((suspect.case.slug, lines))
    return found


def main() -> None:
    """Print the figures; for the set that one develops on, the misses too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--held-out", action="store_true", help="figures only")
    held_out = parser.parse_args().held_out
    cases = clinic.folder(ROOT / "clinic")
    if held_out:
        for name in HELD_OUT:
            print(f"{name}: {measure(rows(name), cases)}")
        return
    figures = measure(rows("dev"), cases)
    print(f"dev: {figures}")
    good = healthy()
    print(f"{len(good)} healthy logs, alarms: {alarms(good, cases)}")
    for row, names in figures.misses:
        print(f"- {row['accept'] or 'not known'}, not {names}: {row['link']}")


if __name__ == "__main__":
    sys.exit(main())
