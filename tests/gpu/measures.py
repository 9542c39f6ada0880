"""Items that measure steps, memory and the guard's cost, by running ``on_gpu.py``."""

import json
import sys

from tests.gpu.play import FAILED, PASSED, ROOT, TORCHRUN, Ended, Item

PROGRAM = str(ROOT / "tests" / "gpu" / "on_gpu.py")
MARK = "FIGURES "


def figures(ended: Ended) -> tuple[str, dict]:
    """Judge a measurement: it passes with exit code 0 and figures without a fault."""
    lines = [line for line in ended.text.splitlines() if line.startswith(MARK)]
    if ended.code != 0 or not lines:
        return FAILED, {}
    found = json.loads(lines[-1].removeprefix(MARK))
    fault = found.pop("fault", "")
    facts = {"figures": found} | ({"why": fault} if fault else {})
    return (FAILED if fault else PASSED), facts


def items(num_gpus: int, device: str) -> list[Item]:
    """Return items for AMP and memory on one GPU, and the guard on one rank and all."""
    alone = (sys.executable, PROGRAM)
    # Memory is rehearsed on virtual GPUs, as torch doesn't count the CPU's memory.
    counted = "vgpu" if device == "cpu" else device
    found = [
        Item("AMP", "step and loss", 1, (*alone, "amp", device), judge=figures),
        Item(
            "memory", "weights to peak", 1, (*alone, "memory", counted), judge=figures
        ),
    ]
    for world_size in sorted({1, max(2, num_gpus)}):
        command = (*TORCHRUN, "--nproc-per-node", str(world_size), PROGRAM)
        ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
        arguments = (*command, "guard", device)
        found.append(Item("guard", ranks, world_size, arguments, judge=figures))
    return found
