"""Measure this machine, all parts (``make bench``) or one (``… tests/bench ddp``).

Each part is a module with ``run() -> dict`` and ``report(dict) -> str``. Its figures go
to book/_data/bench.json, or to the file that the part calls ``DATA``, where the pages
read them. If the runs of a part differ by more than book/_ext/runs/bench.py allows, the
machine was busy, so the part is refused. A part may also refuse what it found, by a
function ``refusal(dict) -> str`` that returns a sentence.

``… tests/bench search FILE`` only prints: how well the search answers a file's queries;
``… tests/bench threads FILE``: how well a file's described symptoms are answered.
"""

import contextlib
import datetime
import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path

import psutil
import torch

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))
from book._ext.runs.bench import MOST_SPREAD, too_wide

DATA = Path(__file__).parents[2] / "book" / "_data" / "bench.json"
PARTS = ["live_ranks", "data_parallel", "ddp", "pipeline", "guard", "silent", "fresh"]
PARTS += ["hangs", "by_hand", "backends", "packing", "precision", "determinism"]
PARTS += ["chance", "rehearse", "diagnose", "pages"]
BY_NAME = ["third_party", "calls"]  # long, or without a figure for a page


def machine() -> dict:
    """Return on which machine, with which versions and when this was measured."""
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


def others() -> str:
    """Say how busy the machine is with other processes than ours, and with which."""
    own = {os.getpid(), *(p.pid for p in psutil.Process().children(recursive=True))}
    there = [p for p in psutil.process_iter(["name"]) if p.pid not in own]
    for process in there:
        with contextlib.suppress(psutil.Error):
            process.cpu_percent()  # the first call starts the count
    time.sleep(0.5)
    busy = []
    for process in there:
        with contextlib.suppress(psutil.Error):
            busy.append((process.cpu_percent(), process.pid, process.info["name"]))
    top = [
        f"{name} ({pid}) {cpu:.0f} %" for cpu, pid, name in sorted(busy)[:-4:-1] if cpu
    ]
    return f"load {os.getloadavg()[0]:.1f}; now running: {', '.join(top) or 'nothing'}"


def refusal(name: str, figures: dict) -> str:
    """Say which figure's runs differ too much to be published, or return ""."""
    for path, value, low, high in too_wide(figures, f"{name}.")[:1]:
        return (
            f"{path} is {value:.2f}, but its runs go from {low:.2f} to {high:.2f}, "
            f"{(high - low) / value:.0%} of it, where {MOST_SPREAD:.0%} is the most: "
            f"{name} is not stored, measure it on a quiet machine ({others()})"
        )
    return ""


def main(names: list[str]) -> None:
    """Run the named parts, or all; print their reports and store their figures."""
    if names[:1] in (["search"], ["threads"]):
        if len(names) != 2:
            raise SystemExit(f"which file? python tests/bench {names[0]} FILE")
        print(importlib.import_module(names[0]).measure(Path(names[1])))
        return
    unknown = sorted(set(names) - {*PARTS, *BY_NAME})
    if unknown:
        there = ", ".join([*PARTS, *BY_NAME])
        raise SystemExit(f"no benchmark {unknown[0]!r}: there are {there}")
    refused = []
    for name in names or PARTS:
        part = importlib.import_module(name)
        print(f"--- {name}: {part.__doc__.splitlines()[0]}", flush=True)
        path = getattr(part, "DATA", DATA)
        data = json.loads(path.read_text("utf8")) if path.is_file() else {}
        figures = part.run()
        print(part.report(figures), flush=True)
        own = getattr(part, "refusal", None)
        if why := refusal(name, figures) or (own and own(figures)):
            refused.append(why)
            continue
        data[name] = figures
        data["machines"] = data.get("machines", {}) | {name: machine()}
        if not names or "machine" not in data:  # all parts ran, or the file is new
            data["machine"] = machine()
        path.parent.mkdir(exist_ok=True)
        text = json.dumps(data, indent=1, sort_keys=True)
        path.write_text(text + "\n", "utf8")
    if refused:
        raise SystemExit("\n".join(refused))


if __name__ == "__main__":
    main(sys.argv[1:])
