"""Ask ``nvidia-smi`` what the driver knows, in the CSV that it prints for programs."""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import re
import shutil
import subprocess
from subprocess import DEVNULL, PIPE, STDOUT

from allranks.doctor.facts import in_a_line, integer

WAIT_S = 10  # for an answer, which a driver that hangs does not give
ECC = "ecc.errors.uncorrected.volatile.total"
FIELDS = "index,name,uuid,driver_version,memory.total,memory.used,memory.free"
FIELDS += f",utilization.gpu,compute_cap,compute_mode,mig.mode.current,{ECC}"


def run(*command: str) -> tuple[str, int]:
    """Return (output, exit code) of a command, and leave no process behind.

    Raises:
        OSError: if it cannot be started.
        subprocess.TimeoutExpired: if it gives no answer; it is then killed with
            its children.
    """
    pipes = {"stdin": DEVNULL, "stdout": PIPE, "stderr": STDOUT}
    how = {"encoding": "utf8", "errors": "replace", "start_new_session": True}
    process = subprocess.Popen(command, **pipes, **how)
    try:
        return process.communicate(timeout=WAIT_S)[0], process.wait(1)
    except subprocess.TimeoutExpired:
        code = process.poll()  # if it has ended, a child holds our pipe
        with contextlib.suppress(OSError):  # if none of its group is left
            getattr(os, "killpg", os.kill)(process.pid, 9)
        output = process.communicate(timeout=1)[0]
        if code is None:
            raise
        return output, code


def query(what: str, fields: str) -> tuple[list[dict[str, str]], str, int]:
    """Return (rows as {field: text}, output, exit code) of a CSV query.

    A field that this driver does not know is empty, and lines that are not of the CSV
    are ignored.

    Args:
        what: ``gpu`` or ``compute-apps``.
        fields: their names, separated by commas.
    """
    asked = fields.split(",")
    while True:
        options = f"--query-{what}={','.join(asked)}", "--format=csv,nounits"
        output, code = run("nvidia-smi", *options)
        lacks = re.search(r'Field "(.+?)" is not a valid field', output)
        if not lacks or lacks[1] not in asked:
            break
        asked.remove(lacks[1])
    lines = output.splitlines()
    while lines and not lines.pop(0).startswith(f"{asked[0]}, "):
        pass
    rows = csv.DictReader(lines, asked, skipinitialspace=True)
    rows = [row for row in rows if None not in [*row, *row.values()]]
    empty = dict.fromkeys(fields.split(","), "")
    return [{**empty, **row} for row in rows], output, code


@functools.lru_cache(1)
def survey() -> tuple[list[dict], tuple[str, ...] | None]:
    """Return the GPUs, and the problem as a check returns it, or None.

    A GPU is a dictionary of ``FIELDS``; its ``processes`` are those of other programs.
    """
    if not shutil.which("nvidia-smi"):
        if not os.path.exists("/proc/driver/nvidia/version"):
            return [], ("ok", "not installed: no NVIDIA GPU to look at")
        fix = "docker run -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
        return [], ("warn", "a driver, but no nvidia-smi on the PATH", fix)
    log = "sudo dmesg | grep -i nvrm; then sudo reboot"
    try:
        gpus, output, code = query("gpu", FIELDS)
        apps = query("compute-apps", "gpu_uuid,pid")[0] if gpus else []
    except subprocess.TimeoutExpired:
        return [], ("fail", f"no answer in {WAIT_S} s: the driver hangs", log)
    except OSError as error:
        return [], ("fail", in_a_line(error), "install the driver again")
    for gpu in gpus:
        pids = [app["pid"] for app in apps if app["gpu_uuid"] == gpu["uuid"]]
        gpu["processes"] = [pid for pid in pids if pid != str(os.getpid())]
    present = [gpu for gpu in gpus if "[GPU is lost]" not in gpu.values()]
    return present, problem(bool(present), output, code, log)


def problem(any_gpu: bool, output: str, code: int, log: str) -> tuple[str, ...] | None:
    """Return the problem that an answer shows, as a check returns it, or None.

    Args:
        any_gpu: whether a GPU answered.
        output: what nvidia-smi printed.
        code: its exit code.
        log: the command that shows the driver's own messages.
    """
    lost = re.findall(".*GPU is lost.*", output)
    odd = re.findall(r"^(?!index, |\d+, ).*\S.*", output, re.M)
    said = [*lost, *odd, "nothing"][0]
    if said.startswith("No devices"):
        fix = "docker run --gpus all ..., or srun --gpus=1 ...; else dmesg"
        return "warn", said, fix
    if "version mismatch" in said:  # the driver was updated, but the old one still runs
        return "fail", said, "sudo reboot"
    if not code and any_gpu and not lost:
        return None
    found = f"exit code {code}: {said}"
    if code != 14 or not any_gpu or lost:
        return "fail", found, log
    fix = "tell its owner: nvidia-smi -q shows the GPU's state"
    return "warn", found, fix  # 14: only the infoROM is damaged, and the GPU works


def links(text: str) -> dict[tuple[int, int], str]:
    """Return the link of each pair (i, j) of GPUs, from ``nvidia-smi topo -m``."""
    lines = re.sub(r"\x1b\[\d*m", "", text).splitlines()
    row = [line.split() for line in lines if re.match(r"GPU\d+\s", line)]
    n = range(len(row))
    return {(i, j): row[i][j + 1] for i in n for j in n if i < j}


def chosen(mask: str, gpus: list[dict]) -> list[dict]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, up to its first error."""
    left = []
    for entry in map(str.strip, mask.split(",")):
        found = [gpu for gpu in gpus if gpu["index"] == entry]
        if entry.startswith("GPU-"):
            found = [gpu for gpu in gpus if gpu["uuid"].startswith(entry)]
        if len(found) != 1:
            break
        if found[0] in left:
            return []  # one is named twice, so CUDA shows none
        left += found
    return left


def in_use(gpu: dict) -> bool:
    """Tell whether somebody computes on a GPU, or uses much of its memory."""
    used, load = integer(gpu["memory.used"]), integer(gpu["utilization.gpu"])
    return bool(gpu["processes"]) or used > 1024 or load > 10
