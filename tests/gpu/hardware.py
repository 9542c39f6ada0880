"""Ask what this machine has, in a process of its own, so that no GPU stays in use."""

import datetime
import json
import subprocess
import sys

ASK = """
import json, torch
there = torch.cuda.is_available()
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
sizes = [torch.cuda.get_device_properties(i).total_memory for i in range(len(names))]
hip = torch.version.hip
print(json.dumps({
    "names": names if there else [],
    "memory_bytes": sizes if there else [],
    "torch": torch.__version__,
    "cuda": f"hip {hip}" if hip else torch.version.cuda,
    "nccl": ".".join(map(str, torch.cuda.nccl.version())) if there else None,
}))
"""


def look() -> dict:
    """Return device names, sizes and versions; no names if PyTorch can use no GPU.

    Raises:
        RuntimeError: if PyTorch fails or hangs when it is asked, with its last line.
    """
    try:
        asked = subprocess.run(
            [sys.executable, "-c", ASK], capture_output=True, text=True, timeout=120
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError("PyTorch does not answer within 120 s") from None
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"PyTorch fails when it is asked for GPUs: {last}")
    found = json.loads(asked.stdout.splitlines()[-1])
    date = datetime.date.today().isoformat()
    return found | {"num_gpus": len(found["names"]), "driver": driver(), "date": date}


def driver() -> str | None:
    """Return the driver's version that nvidia-smi reports, or None."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = asked.stdout.strip().splitlines()
    return lines[-1].strip() if asked.returncode == 0 and lines else None
