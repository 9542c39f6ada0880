"""How often allranks.diagnose is right on real logs, and how long 10 MB take."""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from allranks import clinic
from tests.clinic import measure

REPEATS = 5


def run() -> dict:
    """Measure each set of logs, and the command on 10 MB of them."""
    cases = clinic.folder(measure.ROOT / "clinic")
    found = {}
    for name, sets in ("dev", ["dev"]), ("heldout", measure.HELD_OUT):
        rows = [row for one in sets for row in measure.rows(one)]
        figures = measure.measure(rows, cases)
        found[name] = {
            "logs": figures.known,
            "first_percent": 100 * figures.first / figures.known,
            "shown_percent": 100 * figures.shown / figures.known,
            "unknown": figures.unknown,
            "guessed": figures.guessed,
        }
    good = measure.healthy()
    alarms = len(measure.alarms(good, cases))
    found["healthy"] = {"logs": len(good), "alarms": alarms}
    return found | {"seconds": ten_megabytes(good)}


def ten_megabytes(good: dict[str, str]) -> float:
    """Seconds of the whole command on healthy lines with one failure in them."""
    lines = [line for text in good.values() for line in text.splitlines(True)]
    draw, text = random.Random(0), []
    while sum(map(len, text)) < 10e6:
        text += draw.choices(lines, k=5000)
    text.insert(len(text) // 2, measure.rows("dev")[0]["text"] + "\n")
    with tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf8") as file:
        file.writelines(text)
        file.flush()
        seconds = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            command = [sys.executable, "-m", "allranks.diagnose", file.name]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            seconds.append(time.perf_counter() - start)
    return sorted(seconds)[REPEATS // 2]


def report(found: dict) -> str:
    """The figures in words."""
    sets = [
        f"{name}: {s['logs']} logs, first {s['first_percent']:.1f} %, among three "
        f"{s['shown_percent']:.1f} %; {s['unknown']} unknown, {s['guessed']} guessed"
        for name, s in found.items()
        if name in ("dev", "heldout")
    ]
    healthy = "{logs} healthy logs: {alarms} alarms".format(**found["healthy"])
    return "\n".join([*sets, healthy, f"10 MB: {found['seconds']:.2f} s"])
