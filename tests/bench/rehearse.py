"""What a rehearsal costs: a step against CPU tensors, a start against torchrun's."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from allranks.base.paths import ROOT

SCRIPT = str(Path(__file__).parent / "scripts" / "train_gpt.py")
ROUNDS = 7  # of both ways in turn, every other round in reverse order
STEPS = 12  # of which the first two warm up
TORCHRUN = "torch.distributed.run", "--standalone", "--nproc-per-node=1"
REHEARSAL = "allranks.rehearse", "--gpus=1", "torchrun", *TORCHRUN[1:]
WAYS = {"cpu": (TORCHRUN, "cpu"), "rehearsal": (REHEARSAL, "cuda")}


def timed(way: str, steps: int) -> tuple[float, float]:
    """Return the seconds of a whole run, and the median of its steps."""
    module, device = WAYS[way]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *module, SCRIPT, device, str(steps)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    took = time.perf_counter() - start
    seconds = json.loads(done.stdout.splitlines()[0])
    return took, statistics.median(seconds[2:]) if steps else 0.0


def run() -> dict:
    """Train in both ways, and start and end both without a step, in three minutes."""
    found = {}
    for name, steps, part in (("step", STEPS, 1), ("start", 0, 0)):
        rounds = []
        for number in range(ROUNDS):
            ways = list(WAYS)[:: -1 if number % 2 else 1]
            took = {way: timed(way, steps)[part] for way in ways}
            rounds.append((took["cpu"], took["rehearsal"]))
        ratios = [rehearsed / plain for plain, rehearsed in rounds]
        plain, rehearsed = (statistics.median(way) for way in zip(*rounds, strict=True))
        found[name] = {
            "cpu_s": plain,
            "rehearsal_s": rehearsed,
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
    return found


def report(found: dict) -> str:
    """Return a line for a step, and one for a start."""
    return "\n".join(
        f"{name}: {f['rehearsal_s']:.2f} s against {f['cpu_s']:.2f} s, "
        f"{f['ratio']:.2f} times ({f['ratio_min']:.2f} to {f['ratio_max']:.2f}, "
        f"target {target})"
        for (name, f), target in zip(found.items(), (3, 1.5), strict=True)
    )
