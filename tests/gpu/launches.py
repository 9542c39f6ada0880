"""Launch the doctor and the chapters' scripts as their pages do, a GPU per rank."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from book._ext.front import fronts
from tests.gpu.play import FAILED, PASSED, ROOT, TORCHRUN, Ended, Item


def doctor(ended: Ended) -> tuple[str, dict]:
    """Judge the doctor: it passes if it answered and no check failed.

    The facts are what it found, check by check.
    """
    try:
        found = json.loads(ended.text[ended.text.index("{") :])
        checks = {c["name"]: [c["status"], c["found"]] for c in found["checks"]}
    except (ValueError, KeyError, TypeError):
        return FAILED, {"why": f"no JSON came from it; its last line: {ended.last}"}
    bad = [name for name, (status, _) in checks.items() if status == "fail"]
    why = {"why": f"these checks fail: {', '.join(bad)}"} if bad else {}
    return (FAILED if bad else PASSED), {"checks": checks} | why


def launched(ended: Ended) -> tuple[str, dict]:
    """Judge a launch: it passes with exit code 0.

    The facts are the devices that it named, and NCCL's version.
    """
    outcome = PASSED if ended.code == 0 else FAILED
    facts = {"last": ended.last}
    if devices := sorted(set(re.findall(r"\bcuda:\d+", ended.text))):
        facts["devices"] = devices
    if version := re.search(r"NCCL version (\S+)", ended.text):
        facts["nccl"] = version[1]
    return outcome, facts


def launches(script: Path, sizes: range) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Yield the launches of a script, as its docstring says: name, ranks, command.

    What torchrun starts, and what spawns its ranks itself, has one for each size.
    """
    text, name = script.read_text("utf8"), script.stem
    torchrun = "\n    torchrun " in text
    if not torchrun and "nproc_per_node" not in text:
        yield name, 1, (sys.executable, str(script))
        return
    for world_size in sizes:
        size = ("--nproc-per-node", str(world_size))
        command = (sys.executable, str(script), *size)
        if torchrun:
            command = (*TORCHRUN, *size, str(script))
        ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
        yield f"{name}, {ranks}", world_size, command


def items(num_gpus: int) -> list[Item]:
    """Return items for the doctor, and for each script on 1 to ``num_gpus`` ranks.

    The page of a script that needs more ranks than one says so.
    """
    command = (sys.executable, "-m", "allranks.doctor", "--json")
    found = [Item("doctor", "allranks.doctor --json", 1, command, judge=doctor)]
    pages = fronts(ROOT, "least_ranks").values()
    least = {script: size for page in pages for script, size in page.items()}
    for script in sorted(ROOT.glob("scripts/ch[0-9]*.py")):
        start = least.get(script.stem, 1)
        sizes = range(start, max(start, num_gpus) + 1)
        for name, size, command in launches(script, sizes):
            found.append(Item("scripts", name, size, command, judge=launched))
    return found
