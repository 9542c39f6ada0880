"""The program and its libraries: Python, what started it, torch, and what it sees."""

from __future__ import annotations

import os
import platform

from allranks.doctor import nvidia_smi, wheels
from allranks.doctor.facts import env, in_a_line, text_of, version
from allranks.doctor.registry import check, warn_if

GET_TORCH = "pytorch.org/get-started has the command"


@check("python", "An old Python gets an old torch, and pip does not say so.")
def check_python() -> tuple[str, ...]:
    """Warn of a Python for which no current torch is built."""
    where = f"{platform.system()} {platform.machine()}"
    found = f"{platform.python_version()}, {where}"
    old = version(platform.python_version()) < (3, 10)
    return warn_if(old, found, "use Python 3.10 or newer, as torch does")


@check("started", "What starts a program decides how many copies run, and where.")
def check_started() -> tuple[str, ...]:
    """Report what started this process, and where; warn if there are copies."""
    by = []
    if env("TORCHELASTIC_RUN_ID"):
        by.append(f"torchrun, {env('LOCAL_WORLD_SIZE')} times here")
    if env("OMPI_COMM_WORLD_SIZE"):
        by.append(f"mpirun, {env('OMPI_COMM_WORLD_SIZE')} times")
    copies = bool(by)
    if env("SLURM_JOB_ID"):
        node, nodes = env("SLURM_NODEID", "0"), env("SLURM_NNODES", "1")
        by.append(f"Slurm job {env('SLURM_JOB_ID')}, node {node} of {nodes}")
    inside = {
        "Docker": os.path.exists("/.dockerenv"),
        "Podman": os.path.exists("/run/.containerenv"),
        "Apptainer": env("APPTAINER_NAME") or env("SINGULARITY_NAME"),
        "Kubernetes": env("KUBERNETES_SERVICE_HOST"),
        "WSL": "microsoft" in text_of("/proc/version").lower(),
    }
    found = f"by {' in '.join(by) or 'hand'}"
    found += "".join(f", in {name}" for name, is_in in inside.items() if is_in)
    return warn_if(copies, found, "start it with python, once per machine")


@check(
    "torch",
    "A wheel is built for one kind of accelerator and runs on no other.",
    loads_torch=True,
)
def check_torch() -> tuple[str, ...]:
    """Fail if torch cannot be imported, or has no torch.distributed."""
    torch, error = wheels.load()
    if torch is None:
        broken = not isinstance(error, ModuleNotFoundError)
        again = "--force-reinstall " if broken else ""
        fix = f"pip install {again}torch ({GET_TORCH})"
        return "fail", in_a_line(error), fix
    cuda, hip = torch.version.cuda, getattr(torch.version, "hip", None)
    kind = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU"
    found = f"{torch.__version__}, a {kind} build"
    dist = torch.distributed
    if not dist.is_available():
        return "fail", f"{found} without torch.distributed", GET_TORCH
    names = "gloo", "nccl", "xccl", "ucc", "mpi"
    has = [n for n in names if getattr(dist, f"is_{n}_available", bool)()]
    return "ok", f"{found} with {', '.join(has)}"


@check("numpy", "Gathering objects and saving distributed checkpoints fail without it.")
def check_numpy() -> tuple[str, ...]:
    """Warn if numpy cannot be imported."""
    try:
        import numpy
    except Exception as error:
        return "warn", in_a_line(error), "pip install numpy"
    return "ok", numpy.__version__


@check("accelerator", "A GPU counts only if torch can use it.", "torch")
def check_accelerator() -> tuple[str, ...]:
    """Fail if nvidia-smi sees GPUs but torch does not; name the backend for them."""
    torch, _ = wheels.load()
    if not hasattr(torch, "accelerator"):
        return "warn", "torch.accelerator came in 2.6", "pip install -U torch"
    kind = torch.accelerator.current_accelerator()
    num_gpus = len(nvidia_smi.survey()[0])
    if kind is not None and torch.accelerator.is_available():
        found = f"{torch.accelerator.device_count()} x {kind.type}, "
        try:
            ask = torch.distributed.get_default_backend_for_device
            return "ok", f"{found}joined by {ask(kind.type)}"
        except ValueError:  # a Mac's mps
            return "ok", f"{found}which no backend joins: ranks use the CPU"
    if num_gpus and not torch.version.cuda:
        found = f"{num_gpus} GPUs, but this torch is built without CUDA"
        return "fail", found, f"install a CUDA wheel: {GET_TORCH}"
    if num_gpus and env("CUDA_VISIBLE_DEVICES", "0") not in ("", "-1"):
        fix = 'python -c "import torch; torch.cuda.init()" says why'
        return "fail", f"{num_gpus} GPUs, but none for torch", fix
    return "ok", "none for torch: ranks run on the CPU, with gloo"
