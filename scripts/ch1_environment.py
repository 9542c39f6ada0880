"""Chapter 1 - Environment: what decides whether ranks can train here.

Run it (no GPU needed):
    python scripts/ch1_environment.py
    torchrun --standalone --nproc-per-node 2 scripts/ch1_environment.py
"""

import job  # first, since importing torch takes seconds

import os
import shutil
import socket
import subprocess

import torch
import torch.distributed as dist


def describe_torch() -> str:
    """Say what this PyTorch was built for: it runs on nothing else."""
    cuda, hip = torch.version.cuda, torch.version.hip
    built = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "the CPU"
    names = "gloo, nccl" if dist.is_nccl_available() else "gloo"
    return f"PyTorch {torch.__version__} is built for {built}, with {names}."


def ask_driver() -> list[str]:
    """Ask nvidia-smi for the driver's version; it prints one line per GPU."""
    query = "--query-gpu=driver_version", "--format=csv,noheader"
    how = {"capture_output": True, "text": True, "timeout": 10}
    try:
        done = subprocess.run(["nvidia-smi", *query], **how)
    except (OSError, subprocess.TimeoutExpired):
        return []  # there is no driver, or it hangs
    return [] if done.returncode else done.stdout.split()


def describe_devices() -> str:
    """Say what ranks compute on: a GPU counts only if PyTorch can use it."""
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu is not None and gpu.type != "mps":
        found = f"{torch.accelerator.device_count()} x {gpu.type}"
        backend = dist.get_default_backend_for_device(gpu)
        return f"Ranks compute on {found}, joined by {backend}."
    why, cuda = "there is no GPU for them", torch.version.cuda
    if versions := ask_driver():
        none = f"CUDA {cuda} does not start"
        why = f"{len(versions)} GPUs have driver {versions[0]}, but "
        why += none if cuda else "this PyTorch is built without CUDA"
    backend = dist.get_default_backend_for_device("cpu")
    return f"Ranks compute on the CPU, joined by {backend}: {why}."


def describe_cores(num_ranks: int) -> str:
    """Say how many cores there are for the ranks of this machine."""
    usable = getattr(os, "sched_getaffinity", None)  # macOS has none
    cores = len(usable(0)) if usable else os.cpu_count()
    share = f"{cores} of {os.cpu_count()} are ours, {cores / num_ranks:g}"
    num = torch.get_num_threads()
    return f"Cores: {share} per rank; threads in each rank: {num}."


def describe_memory() -> str:
    """Say how much of /dev/shm is free: DataLoader's workers fill it."""
    if not os.path.isdir("/dev/shm"):
        return "There is no /dev/shm, since this is not Linux."
    disk = shutil.disk_usage("/dev/shm")
    size = f"{disk.free / 2**30:.1f} of {disk.total / 2**30:.1f} GiB free"
    if disk.free >= 2**30:
        return f"/dev/shm has {size}, which is enough."
    cure = "start the container with --ipc=host"
    return f"/dev/shm has {size}, which is little: {cure}."


def describe_name() -> str:
    """Say where this machine's own name leads, since gloo listens there."""
    name = socket.gethostname()
    try:
        address, leads = socket.gethostbyname(name), "resolves to"
    except OSError:
        address, leads = "127.0.0.1", "has no address, so gloo takes"
    inside = address.startswith("127.")
    who = "only ranks on this machine" if inside else "ranks of many machines"
    what = f"{name} {leads} {address}"
    return f"The name {what}, where {who} can reach each other."


def describe_launcher() -> str:
    """Say who makes this process a rank: a launcher, a mistake, or nobody."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        num = os.environ["LOCAL_WORLD_SIZE"]
        return f"Processes that torchrun started on this machine: {num}."
    names = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
    if stale := " ".join(name for name in names if name in os.environ):
        return f"No launcher has set these variables: unset {stale}."
    return "No launcher started this process, so it is alone."


def add_up(rank: int, world_size: int, device: torch.device) -> str:
    """Add up what all ranks bring: 1 + 2 + ... + W, which has a formula."""
    x = torch.full((2**22,), rank + 1.0, device=device)  # 16 MiB
    dist.all_reduce(x)
    expected = world_size * (world_size + 1) / 2
    if not bool((x == expected).all()):
        wrong = f"all_reduce gave {x.min():g} to {x.max():g}"
        job.refuse(f"{wrong}, not {expected:g}: do not train here")
    return f"I brought {rank + 1}, and all_reduce made it {expected:g}: right."


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__).parse_args(argv)


def main(args) -> None:
    """Print the facts once on each machine, then let all ranks add."""
    num_ranks = 1
    if is_rank := "LOCAL_RANK" in os.environ:
        job.launched()  # refuse an incomplete set of a launcher's variables
        num_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    if os.environ.get("LOCAL_RANK", "0") == "0":
        facts = [describe_torch(), describe_devices()]
        facts += [describe_cores(num_ranks), describe_memory()]
        facts += [describe_name(), describe_launcher()]
        for line in facts:
            job.put(line)
    if is_rank:
        with job.ranks(args) as (rank, world_size, device):
            job.say(add_up(rank, world_size, device))


if __name__ == "__main__":
    main(parse_args())
