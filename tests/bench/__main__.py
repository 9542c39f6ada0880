"""Measure this machine: all of it (``make bench``) or a part (``… tests/bench ddp``).

Each part is a module with ``run() -> dict`` and ``report(dict) -> str``. What they
measure goes to book/_data/bench.json, or to the file that a part calls ``DATA``, from
which the pages take their figures.
"""

import datetime
import importlib
import json
import os
import platform
import sys
from pathlib import Path

import torch

DATA = Path(__file__).parents[2] / "book" / "_data" / "bench.json"
PARTS = ["live_ranks", "data_parallel", "ddp", "pipeline", "guard", "fresh", "hangs"]
PARTS += ["diagnose"]


def machine() -> dict:
    """Say on what and when this was measured."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
    return {
        "date": datetime.date.today().isoformat(),
        "machine": cpu,
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
    }


def main(names: list[str]) -> None:
    """Run the named parts, print their reports, store their figures."""
    unknown = sorted(set(names) - set(PARTS))
    if unknown:
        raise SystemExit(f"no benchmark {unknown[0]!r}: there are {', '.join(PARTS)}")
    for name in names or PARTS:
        part = importlib.import_module(name)
        print(f"--- {name}: {part.__doc__.splitlines()[0]}", flush=True)
        path = getattr(part, "DATA", DATA)
        data = json.loads(path.read_text("utf8")) if path.is_file() else {}
        data |= {"machine": machine(), name: part.run()}
        print(part.report(data[name]), flush=True)
        path.parent.mkdir(exist_ok=True)
        text = json.dumps(data, indent=1, sort_keys=True)
        path.write_text(text + "\n", "utf8")


if __name__ == "__main__":
    main(sys.argv[1:])
