"""What ``nvidia-smi`` answers in a rehearsal: the GPUs of a node, and what they hold.

Only what programs ask: the table, ``-L``, and ``--query-gpu`` or
``--query-compute-apps`` as CSV, of all GPUs or of those that ``-i`` names. What is in
use comes from the records, which each process writes twice a second. How busy a GPU is
is not measured: 0, and other sensors are "[N/A]".
"""

import os
import re
import socket
import sys
from collections.abc import Container
from pathlib import Path

from allranks.rehearse import records
from allranks.rehearse.records import Stage
from allranks.vgpu.cuda import cards
from allranks.vgpu.cuda.nvml import DRIVER
from allranks.vgpu.sizes import to_bytes
from allranks.vgpu.views import memory_table

MIB = 2**20
SCRIPT = '#!/bin/sh\nexec "{}" -m allranks.rehearse.nvidia_smi "$@"\n'
MEMORY = "memory.total", "memory.used", "memory.free", "used_memory", "used_gpu_memory"
UNITS = dict.fromkeys(MEMORY, "MiB") | {"utilization.gpu": "%"}
VERSIONS = f"NVIDIA-SMI {DRIVER}   Driver Version: {DRIVER}   CUDA Version: 12.8"
VERSIONS += "   (a rehearsal)"
SENSORS = "clocks", "ecc", "encoder", "fan", "mig", "pci", "power", "pstate", "retired"
SENSORS += "temperature", "utilization"
APP = "pid", "gpu_uuid", "used_memory", "used_gpu_memory", "name", "process_name"
Row = dict[str, str]


def install(folder: Path) -> None:
    """Write a program of this name into a folder, which comes first in PATH."""
    path = folder / "nvidia-smi"
    path.write_text(SCRIPT.format(sys.executable), "utf8")
    path.chmod(0o755)


def answer(words: list[str], stage: Stage) -> tuple[str, int]:
    """Return the text and the exit code for some arguments.

    Args:
        words: the arguments.
        stage: the rehearsal, with the number of GPUs and their memory.
    """
    line, apps = " ".join(words), _apps(stage)
    gpus = _gpus(stage, apps)
    if chosen := re.search(r"(?:^| )(?:-i|--id)[ =](\S+)", line):
        names, line = chosen[1].split(","), line.replace(chosen[0], "").strip()
        gpus = [gpu for gpu in gpus if {gpu["index"], gpu["uuid"]} & {*names}]
        if not gpus:
            return "No devices were found\n", 6
    if line in ("-L", "--list-gpus"):
        lines = [f"GPU {g['index']}: {g['name']} (UUID: {g['uuid']})" for g in gpus]
        return "\n".join(lines) + "\n", 0
    if not line:  # the table that a person looks at
        rows = [
            (
                f"{gpu['index']:>3}  {gpu['name']}",
                int(gpu["memory.used"]) * MIB,
                int(gpu["memory.total"]) * MIB,
                "N/A",
            )
            for gpu in gpus
        ]
        return f"{VERSIONS}\n{memory_table(rows, 'not measured')}\n", 0
    flags = dict(word.partition("=")[::2] for word in line.split())
    form = flags.get("--format", "csv").split(",")
    if names := flags.get("--query-compute-apps"):
        chosen_uuids = {gpu["uuid"] for gpu in gpus}
        apps = [app for app in apps if app["gpu_uuid"] in chosen_uuids]
        return _csv(names.split(","), apps, APP, form)
    if names := flags.get("--query-gpu"):
        return _csv(names.split(","), gpus, gpus[0], form)
    return f"nvidia-smi: a rehearsal does not answer {' '.join(words)}\n", 1


def _uuid(stage: Stage, index: int) -> str:
    """Return a GPU's UUID, which torch.cuda and pynvml tell alike."""
    return f"GPU-{cards.Properties(_card(stage), 0, index).uuid}"


def _card(stage: Stage) -> cards.Card:
    return cards.find(stage.card) if stage.card else cards.VIRTUAL


def _gpus(stage: Stage, apps: list[Row]) -> list[Row]:
    """Return a row for each GPU of this node."""
    card = _card(stage)
    total = (to_bytes(stage.memory) if stage.memory else card.memory) // MIB
    rows = []
    for index in range(stage.gpus):
        uuid = _uuid(stage, index)
        used = sum(int(a["used_memory"]) for a in apps if a["gpu_uuid"] == uuid)
        rows.append(
            {  # all columns that --query-gpu knows, in the names that it has for them
                "index": str(index),
                "name": card.name,
                "gpu_name": card.name,
                "uuid": uuid,
                "gpu_uuid": uuid,
                "memory.total": str(total),
                "memory.free": str(total - used),
                "memory.used": str(used),
                "driver_version": DRIVER,
                "count": str(stage.gpus),
                "compute_cap": "{}.{}".format(*card.capability),
                "compute_mode": "Default",
                "utilization.gpu": "0",
            }
        )
    return rows


def _apps(stage: Stage) -> list[Row]:
    """Return a row for each process on this node and each GPU that it uses."""
    here = os.environ.get("ALLRANKS_HOST") or socket.gethostname()
    rows = []
    for record in records.read(stage.folder):
        for gpu in record.gpus if record.host == here else ():
            used = str(-(-gpu.reserved_bytes // MIB))  # rounded up
            uuid = _uuid(stage, gpu.physical)
            values = str(record.pid), uuid, used, used, "python", "python"
            rows += [] if record.ended else [dict(zip(APP, values, strict=True))]
    return rows


def _csv(
    names: list[str], rows: list[Row], known: Container[str], form: list[str]
) -> tuple[str, int]:
    """Return columns as CSV, in nvidia-smi's form.

    Args:
        names: of the columns.
        rows: what is known.
        known: the names that there are.
        form: "csv", and "noheader" or "nounits".
    """
    for name in names:
        if name not in known and not name.startswith(SENSORS):
            return f'Field "{name}" is not a valid field to query.\n', 2
    units = {} if "nounits" in form else UNITS
    lines = [f"{name} [{UNITS[name]}]" if name in UNITS else name for name in names]
    lines = [] if "noheader" in form else [", ".join(lines)]
    for row in rows:
        cells = [f"{row.get(n, '[N/A]')} {units.get(n, '')}".rstrip() for n in names]
        lines.append(", ".join(cells))
    return "".join(f"{line}\n" for line in lines), 0


def main() -> int:
    """Answer on stdout."""
    text, code = answer(sys.argv[1:], records.stage())
    os.write(1, text.encode())
    return code


if __name__ == "__main__":
    sys.exit(main())
