"""The machine around the GPUs: cores, memory, shared memory, open files, the clock."""

from __future__ import annotations

import os
import re
import time

from allranks.doctor import facts, nvidia_smi
from allranks.doctor.facts import env, gib, integer
from allranks.doctor.registry import check, warn_if


@check("cores", "A rank needs cores to launch work and to load data.")
def check_cores() -> tuple[str, ...]:
    """Warn of fewer than two cores for a GPU, or an impossible OMP_NUM_THREADS."""
    cores = facts.num_cores()
    ranks, name = max(1, len(nvidia_smi.survey()[0])), "OMP_NUM_THREADS"
    found, value = f"{cores} of {os.cpu_count()}", env(name, "not set")
    found += f", {cores / ranks:g} per GPU" if ranks > 1 else ""
    found += f"; {name} is {value}"
    if value != "not set" and not 0 < integer(value) <= cores:
        return "warn", found, f"export {name}={max(1, cores // ranks)}"
    if ranks > 1 and cores < 2 * ranks:
        return "warn", found, f"ask for more: srun --cpus-per-task={4 * ranks}"
    return "ok", found


@check("memory", "Above a container's limit, a rank is killed without a message.")
def check_memory() -> tuple[str, ...]:
    """Warn if machine or container has less than 1 GiB free for each rank."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = "memory.max", "memory.limit_in_bytes"  # cgroup versions 2 and 1
    caps = [integer(text) for name in names for text in facts.limits(name)]
    cap = min([total, *filter(None, caps)])
    free = re.search(r"MemAvailable: *(\d+)", facts.text_of("/proc/meminfo"))
    free = min(cap, 1024 * int(free[1])) if free else cap
    found = f"{gib(free)} free of {gib(total)}"
    found += f"; the container's limit is {gib(cap)}" if cap < total else ""
    if free < 2**30 * max(1, len(nvidia_smi.survey()[0])):
        fix = "raise it (docker --memory, sbatch --mem) or start fewer ranks"
        return "warn", f"{found}: below 1 GiB per rank", fix
    return "ok", found


@check("shm", "DataLoader's workers and NCCL pass data through /dev/shm.", "linux")
def check_shm() -> tuple[str, ...]:
    """Warn if less than 1 GiB of shared memory is free."""
    disk = os.statvfs("/dev/shm")
    total, free = (disk.f_frsize * n for n in (disk.f_blocks, disk.f_bavail))
    found = f"{gib(free)} free of {gib(total)}"
    fix = "docker run --ipc=host ..., or --shm-size=8g"
    return warn_if(free < 2**30, found, fix)


@check("files", "Each tensor that a DataLoader's worker sends is an open file.")
def check_files() -> tuple[str, ...]:
    """Warn if fewer than 1024 files may be open at a time."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few, fix = 0 <= soft < 1024, f"ulimit -n {min(hard, 65536)}"
    return warn_if(few, f"{soft} may be open", fix)


@check("clock", "Certificates, time limits and the logs of many machines rely on it.")
def check_clock() -> tuple[str, ...]:
    """Warn if the clock shows a time before this Python was installed."""
    found = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    late = time.time() < os.path.getmtime(os.__file__)
    found += ", before this Python was installed" if late else ""
    return warn_if(late, found, "sudo timedatectl set-ntp true")
