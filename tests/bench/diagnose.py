"""How long allranks.diagnose takes for 10 MB."""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from tests.clinic import measure

REPEATS = 5


def run() -> dict:
    """Time the whole command on healthy lines with one failure in them."""
    draw, text = random.Random(0), []
    lines = [x for log in measure.healthy().values() for x in log.splitlines(True)]
    while sum(map(len, text)) < 10e6:
        text += draw.choices(lines, k=5000)
    text.insert(len(text) // 2, measure.rows(measure.DEV)[0]["text"] + "\n")
    with tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf8") as file:
        file.writelines(text)
        file.flush()
        seconds = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            command = [sys.executable, "-m", "allranks.diagnose", file.name]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            seconds.append(time.perf_counter() - start)
    return {"seconds": sorted(seconds)[REPEATS // 2]}


def report(found: dict) -> str:
    """Return the figure as text."""
    return f"10 MB: {found['seconds']:.2f} s"
