"""Backends of torch.distributed, written in Python: ``register("shm")`` adds one.

A backend carries out the collectives of a process group, as gloo and nccl do. What
needs a group stays as it is: ``dist.init_process_group("shm", ...)``, DDP, FSDP2.
"shm" is fast, and "link" as slow as the link that ``ALLRANKS_LINK`` names.
"""

import os

import torch.distributed as dist

from allranks.backends import link, shm

OURS = {"shm": shm.SharedMemory, "link": link.create}


def register(text: str) -> str:
    """Tell torch about one of our backends, and return the name that torch knows.

    A second call does nothing.

    Args:
        text: a key of ``OURS``; "link" may say which one, as in ``link:eth1``.
    Raises:
        ValueError: if there is no such backend, or it has no such setting.
    """
    name, _, setting = text.partition(":")
    if name not in OURS:
        raise ValueError(f"there is no backend {name!r} of ours: {', '.join(OURS)}")
    if setting and name != "link":
        raise ValueError(f"backend {text!r}: {name!r} has no settings, say {name!r}")
    if setting:
        os.environ[link.VARIABLE] = setting
    if name not in dist.Backend.backend_list:
        dist.Backend.register_backend(name, OURS[name], name == "link", ["cpu"])
    return name
