"""What ``nvidia-smi`` answers in a rehearsal: the GPUs that the script sees.

Only what scripts ask: the plain table, ``-L``, and ``--query-gpu=... --format=csv``,
of all GPUs or of those that ``-i`` names.
The memory in use is 0, because another process's is not known here.
"""

import os
import re
import sys
from pathlib import Path

from allranks.rehearse import settings
from allranks.vgpu.cuda import cards
from allranks.vgpu.sizes import to_bytes

MIB = 2**20
SCRIPT = '#!/bin/sh\nexec "{}" -m allranks.rehearse.nvidia_smi "$@"\n'


def put_into(folder: Path) -> None:
    """Write a program of this name into a folder, which comes first in PATH."""
    path = folder / "nvidia-smi"
    path.write_text(SCRIPT.format(sys.executable), "utf8")
    path.chmod(0o755)


def answer(words: list[str], stage: settings.Settings) -> tuple[str, int]:
    """Return the text and the exit code for some arguments.

    Args:
        words: the arguments.
        stage: the rehearsal, with the number of GPUs and their memory.
    """
    card = cards.find(stage.card) if stage.card else cards.VIRTUAL
    memory = to_bytes(stage.memory) if stage.memory else card.memory
    total = f"{memory // MIB} MiB"
    rows = [
        {
            "index": str(i),
            "name": card.name,
            "gpu_name": card.name,
            "uuid": f"GPU-{i:08x}",
            "memory.total": total,
            "memory.free": total,
            "memory.used": "0 MiB",
            "utilization.gpu": "0 %",
            "driver_version": "570.0",
            "count": str(stage.gpus),
            "compute_cap": "{}.{}".format(*card.capability),
        }
        for i in range(stage.gpus)
    ]
    if chosen := re.search(r"(?:^| )(?:-i|--id)[ =](\S+)", " ".join(words)):
        names = chosen[1].split(",")
        rows = [r for r in rows if r["index"] in names or r["uuid"] in names]
        words = " ".join(words).replace(chosen[0], "").split()
        if not rows:
            return "No devices were found\n", 6
    if words in (["-L"], ["--list-gpus"]):
        lines = [f"GPU {r['index']}: {r['name']} (UUID: {r['uuid']})" for r in rows]
        return "\n".join(lines) + "\n", 0
    if not words:
        lines = [
            f"| {r['index']:>3}  {r['name']:30} 0MiB / {total:>10} |" for r in rows
        ]
        return "\n".join(["NVIDIA-SMI (a rehearsal's)", *lines]) + "\n", 0
    flags = dict(word.partition("=")[::2] for word in words)
    names = flags.get("--query-gpu", "").split(",")
    unknown = [name for name in names if name not in rows[0]]
    if unknown:
        return f"nvidia-smi: a rehearsal does not answer {' '.join(words)}\n", 1
    form = flags.get("--format", "csv").split(",")
    lines = [", ".join(row[name] for name in names) for row in rows]
    if "nounits" in form:
        lines = [line.replace(" MiB", "").replace(" %", "") for line in lines]
    if "noheader" not in form:
        lines.insert(0, ", ".join(names))
    return "\n".join(lines) + "\n", 0


def main() -> int:
    """Answer on stdout."""
    text, code = answer(sys.argv[1:], settings.read())
    os.write(1, text.encode())
    return code


if __name__ == "__main__":
    sys.exit(main())
