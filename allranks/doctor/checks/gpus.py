"""GPUs: their driver, whether the wheel fits them, who uses them, what links them."""

from __future__ import annotations

import re
import shutil
import sys

from allranks.doctor import facts, nvidia_smi, wheels
from allranks.doctor.checks.program import GET_TORCH
from allranks.doctor.facts import env, gib, integer, version
from allranks.doctor.nvidia_smi import ECC, in_use
from allranks.doctor.registry import check, warn_if

LINKS = "NV", "PIX", "PXB", "PHB", "NODE", "SYS"  # the fastest first


@check("nvidia-smi", "If it does not answer, CUDA will not either.")
def check_nvidia_smi() -> tuple[str, ...]:
    """Report the problem that nvidia-smi's answer shows, else the driver's version."""
    gpus, problem = nvidia_smi.survey()
    return problem or ("ok", f"driver {gpus[0]['driver_version']}")


@check(
    "gpus", "The slowest GPU sets the pace, and the smallest memory the batch.", "gpus"
)
def check_gpus() -> tuple[str, ...]:
    """Count the GPUs of each kind, and warn if there are several kinds."""
    kinds = {}
    for gpu in nvidia_smi.survey()[0]:
        total, free = integer(gpu["memory.total"]), integer(gpu["memory.free"])
        size = gib(total * 2**20) if total else "memory not known"
        kinds.setdefault((gpu["name"], size), []).append(free * 2**20)
    found = []
    for (name, size), free in kinds.items():
        known = size != "memory not known"
        more = f" ({gib(min(free))} or more free)" if known else ""
        found.append(f"{len(free)} x {name}, {size}{more}")
    fix = "train on GPUs of one kind: CUDA_VISIBLE_DEVICES"
    return warn_if(len(kinds) > 1, "; ".join(found), fix)


@check(
    "driver",
    "The wheel brings CUDA, and the driver must be new enough to run it.",
    "gpus cuda",
)
def check_driver() -> tuple[str, ...]:
    """Fail if the driver is too old for the wheel's CUDA, and CUDA does not start."""
    torch, _ = wheels.load()
    cuda, has = torch.version.cuda, nvidia_smi.survey()[0][0]["driver_version"]
    found, runs = f"{has}; the wheel's CUDA is {cuda}", wheels.driver_runs(has, cuda)
    if runs or runs is None or torch.cuda.is_available():  # by cuda-compat
        return "ok", found
    oldest = wheels.OLDEST_DRIVER
    need = ".".join(map(str, oldest[version(cuda)[0]]))
    older = [cuda for cuda in oldest if wheels.driver_runs(has, str(cuda))]
    fix = f"update the driver to {need} or newer"
    fix += f", or install a wheel for CUDA {max(older)}" if older else ""
    return "fail", f"{found}: too old", fix


@check(
    "capability",
    "A wheel runs only on the architectures that it was compiled for.",
    "gpus cuda",
)
def check_capability() -> tuple[str, ...]:
    """Fail if the wheel holds no code for one of the GPUs."""
    torch, _ = wheels.load()
    has = {gpu["index"]: gpu["compute_cap"] for gpu in nvidia_smi.survey()[0]}
    if torch.cuda.is_available():
        ask = torch.cuda.get_device_capability
        count = range(torch.cuda.device_count())
        has = {str(i): "{}.{}".format(*ask(i)) for i in count}
    has = {i: text for i, text in has.items() if version(text)}
    archs = torch.cuda.get_arch_list()
    bad = [f"{i} ({c})" for i, c in has.items() if not wheels.arch_runs(c, archs)]
    if bad:
        found = f"GPU {', '.join(bad)}; this wheel has {' '.join(archs)}"
        return "fail", found, f"install a wheel built for it: {GET_TORCH}"
    return "ok", ", ".join(sorted(set(has.values()))) or "not known"


@check(
    "libraries",
    "The wheel brings cuDNN and NCCL, which LD_LIBRARY_PATH may hide.",
    "cuda",
)
def check_libraries() -> tuple[str, ...]:
    """Name the wheel's cuDNN and NCCL, and warn if a folder with others comes first."""
    torch, _ = wheels.load()
    found = []
    if torch.backends.cudnn.is_available():
        number = torch.backends.cudnn.version()  # 91002: 9.10.2; 8902: 8.9.2
        major, rest = divmod(number, 10000 if number >= 90000 else 1000)
        found.append(f"cuDNN {major}.{rest // 100}.{rest % 100}")
    if torch.distributed.is_nccl_available():
        found.append("NCCL " + ".".join(map(str, torch.cuda.nccl.version())))
    for path in env("LD_LIBRARY_PATH").split(":"):
        if re.search("cuda|cudnn|nccl", path):
            found.append(f"but parts may come from {path}")
            return "warn", ", ".join(found), "unset LD_LIBRARY_PATH"
    toolkit = "not used" if shutil.which("nvcc") else "not needed"
    return "ok", ", ".join(found) + f", of the wheel; a toolkit is {toolkit}"


@check("visible", "CUDA_VISIBLE_DEVICES chooses GPUs, but only before CUDA starts.")
def check_visible() -> tuple[str, ...]:
    """Warn of a mask that was set too late, or that hides more than it seems to."""
    name, gpus = "CUDA_VISIBLE_DEVICES", nvidia_smi.survey()[0]
    started = facts.text_of("/proc/self/environ")  # not changed by os.environ
    first = re.search(f"(?:^|\0){name}=([^\0]*)", started)
    first, mask = first and first[1], env(name, None)
    torch = wheels.load()[0] if "torch" in sys.modules else None
    if torch and torch.cuda.is_initialized() and mask != first:
        found = f"{name}={mask} was set after CUDA had started: no effect"
        return "warn", found, f"{name}={mask} python ..."
    if not gpus:
        return "ok", f"{name} is {mask or 'not set'}"
    mixed = len({gpu["name"] for gpu in gpus}) > 1
    if mixed and env("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        found = "torch counts the fastest GPU first, nvidia-smi by slot"
        return "warn", found, "export CUDA_DEVICE_ORDER=PCI_BUS_ID"
    if mask is None or mask.startswith("MIG-"):
        return "ok", f"{name} is {mask or 'not set'}"
    left = len(nvidia_smi.chosen(mask, gpus))
    found = f"{name}={mask} leaves {left} of {len(gpus)} GPUs"
    wrong = not left or left < len(mask.split(","))
    return warn_if(wrong, found, f"unset {name}, or name each GPU once")


@check(
    "mode",
    "Before 2.30 NCCL takes one MIG slice of a GPU; an exclusive GPU, one process.",
    "gpus",
)
def check_mode() -> tuple[str, ...]:
    """Warn of GPUs that are split, or that admit no second process."""
    found, fixes = [], []
    for field, text, flags in (
        ("mig.mode.current", "Enabled", "-mig 0"),
        ("compute_mode", "Exclusive_Process", "-c DEFAULT"),
        ("compute_mode", "Prohibited", "-c DEFAULT"),
    ):
        gpus = nvidia_smi.survey()[0]
        which = ",".join(gpu["index"] for gpu in gpus if gpu[field] == text)
        if which:
            found.append(f"GPU {which}: {field} is {text}")
            fixes.append(f"sudo nvidia-smi -i {which} {flags}")
    return warn_if(found, "; ".join(found) or "shared", "; ".join(fixes))


@check("ecc", "A memory error that could not be corrected ends the job.", "gpus")
def check_ecc() -> tuple[str, ...]:
    """Fail if a GPU has counted errors that ECC could not correct."""
    texts = {gpu["index"]: gpu[ECC] for gpu in nvidia_smi.survey()[0]}
    bad = {i: text for i, text in texts.items() if integer(text)}
    if bad:
        found = ", ".join(f"GPU {i}: {n}" for i, n in bad.items())
        fix = f"sudo nvidia-smi -i {','.join(bad)} -r; again? replace it"
        return "fail", f"{found} errors that were not corrected", fix
    counts = any(text.isdecimal() for text in texts.values())
    return "ok", "no error" if counts else "these GPUs do not count errors"


@check(
    "busy", "A GPU that somebody uses has less memory and less time for you.", "gpus"
)
def check_busy() -> tuple[str, ...]:
    """Warn of GPUs in use, and recommend those that are idle, or the emptiest."""
    taken, idle = [], []
    for gpu in nvidia_smi.survey()[0]:
        used, load = gpu["memory.used"], gpu["utilization.gpu"]
        about = f"{used} MiB, {load} %, processes: {len(gpu['processes'])}"
        if in_use(gpu):
            taken.append(f"{gpu['index']} ({about})")
        elif not integer(gpu[ECC]):
            idle.append(gpu["index"])
    if not taken:
        return "ok", "all are idle"
    gpus = nvidia_smi.survey()[0]
    best = max(gpus, key=lambda gpu: integer(gpu["memory.free"]))
    fix = f"CUDA_VISIBLE_DEVICES={','.join(idle) or best['index']} python ..."
    fix += "" if idle else f" (none is idle; {best['memory.free']} MiB free)"
    return "warn", f"GPU {', '.join(taken)}", fix


@check(
    "topology",
    "Data goes from GPU to GPU by NVLink, by PCIe, or through the CPUs.",
    "gpus",
)
def check_topology() -> tuple[str, ...]:
    """Sort the pairs of GPUs by their links, and recommend neighbors that are idle."""

    def distance(
        item: tuple,
    ) -> tuple[int, int]:  # NV4 before NV2 before PIX before SYS
        name, lanes = re.match(r"(\D*)(\d*)", item[1]).groups()
        return (*LINKS, name).index(name), -integer(lanes)

    gpus = nvidia_smi.survey()[0]
    if len(gpus) < 2:
        return "ok", "one GPU"
    idle = {g["index"] for g in gpus if not in_use(g) and not integer(g[ECC])}
    pairs = nvidia_smi.links(nvidia_smi.run("nvidia-smi", "topo", "-m")[0])
    kinds, near = {}, []
    for (i, j), link in sorted(pairs.items(), key=distance):
        kinds.setdefault(link, []).append(f"{i}-{j}")
        if {str(i), str(j)} <= idle:
            near.append(f"{i},{j}")
    if len(kinds) < 2:
        found = "not known: nvidia-smi topo -m shows none"
        return "ok", f"{''.join(kinds)} between all" if kinds else found
    fix = "for 2 ranks take neighbors: CUDA_VISIBLE_DEVICES="
    fix = fix + near[0] if near else ""
    return "ok", "; ".join(f"{k} {' '.join(p)}" for k, p in kinds.items()), fix


@check("peer", "Without peer access, NCCL copies through the host's memory.", "devices")
def check_peer() -> tuple[str, ...]:
    """Warn if a GPU cannot read another one's memory, in any direction."""
    cuda = wheels.load()[0].cuda
    n, reaches = cuda.device_count(), cuda.can_device_access_peer
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    lacks = [f"{i}-{j}" for i, j in pairs if not reaches(i, j)]
    if lacks:
        found = f"none for {len(lacks)} of {len(pairs)} pairs: "
        return "warn", found + " ".join(lacks[:9]), "nvidia-smi topo -p2p r"
    return "ok", f"between all {n}" if pairs else "one GPU"
