"""Backends of torch.distributed, written in Python: ``register("shm")`` adds one.

A backend carries out the collectives of a process group, as gloo and nccl do. What
needs a group stays as it is: ``dist.init_process_group("shm", ...)``, DDP, FSDP2.
"""

import torch.distributed as dist

from allranks.backends import shm

OURS = {"shm": shm.SharedMemory}


def register(name: str) -> None:
    """Tell torch about one of our backends; a second call does nothing.

    Args:
        name: a key of ``OURS``.
    Raises:
        ValueError: if there is no such backend.
    """
    if name not in OURS:
        raise ValueError(f"there is no backend {name!r} of ours: {', '.join(OURS)}")
    if name not in dist.Backend.backend_list:
        dist.Backend.register_backend(name, OURS[name], devices=["cpu"])
