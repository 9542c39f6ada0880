"""The ranks of a group tell each other, once, which GPU each of them uses."""

import contextlib
import os
import socket
import time
from datetime import timedelta

import torch.distributed as dist

from allranks.vgpu.machine import Device

VISIBLE = "CUDA_VISIBLE_DEVICES"
HOST = "ALLRANKS_HOST"  # in a rehearsal of several nodes, the name of this one
PATIENCE_S = 2.0  # that a rank which goes has for those that have not heard all yet


class Meeting:
    """What happens at a group's first collective, when NCCL makes a communicator.

    Args:
        store: of the group alone.
        rank, size: of this process in it.
        timeout: how long to wait for the other ranks.
    """

    def __init__(
        self, store: dist.Store, rank: int, size: int, timeout: timedelta
    ) -> None:
        self._store = dist.PrefixStore("gpus", store)
        self._rank, self._size, self._timeout = rank, size, timeout
        self._held: set[int] = set()  # indices of devices: each has a communicator
        self._attempts = 0  # after a refused one, ranks may come again

    def hold(self, home: Device) -> None:
        """Compare this rank's device with those of all others, at the first call on it.

        Raises:
            DistBackendError: if two ranks use one device, or one does not come.
        """
        if self._size == 1 or home.index in self._held:
            return
        mine, prefix = physical(home.index), f"{self._attempts}/"
        self._attempts += 1
        names = [f"{prefix}{rank}" for rank in range(self._size)]
        try:
            self._store.set(names[self._rank], mine)
            self._store.wait(names, self._timeout)
            theirs = [text.decode() for text in self._store.multi_get(names)]
        except RuntimeError as error:  # each kind of store has one of its own
            raise dist.DistBackendError(self._alone(names, error)) from None
        for rank, their in enumerate(theirs):
            if rank != self._rank and their == mine:
                self._wait_for_others(f"{prefix}met")
                raise dist.DistBackendError(_duplicate(self._rank, rank, mine))
        self._store.add(f"{prefix}met", 1)
        self._held.add(home.index)

    def _alone(self, names: list[str], error: RuntimeError) -> str:
        """Say who has not come to the first collective, as far as the store knows."""
        who = "the rank that keeps the store has ended"
        with contextlib.suppress(RuntimeError):
            late = [r for r, name in enumerate(names) if not self._store.check([name])]
            who = f"without rank {', '.join(map(str, late))}" if late else str(error)
        return (
            f"rank {self._rank} waited at the group's first collective, where ranks "
            f"tell each other which GPU they use: {who}"
        )

    def _wait_for_others(self, key: str) -> None:
        """Let all ranks read before this one goes, and maybe takes the store along."""
        until = time.monotonic() + PATIENCE_S
        count = self._store.add(key, 1)
        while count < self._size and time.monotonic() < until:
            time.sleep(0.01)
            count = self._store.add(key, 0)


def physical(index: int) -> str:
    """Name the GPU behind an index: its host, and its number on that host."""
    host = os.environ.get(HOST) or socket.gethostname()
    visible = [part.strip() for part in os.environ.get(VISIBLE, "").split(",")]
    number = visible[index] if index < len(visible) and visible[index] else index
    return f"{host} {number}"


def _duplicate(rank: int, other: int, gpu: str) -> str:
    """Return what NCCL says if two ranks use one GPU."""
    number = gpu.split()[-1]
    bus = f"{(int(number) + 1) << 12:x}" if number.isdecimal() else number
    return (
        "NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "Last error:\n"
        f"Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device "
        f"{bus}"
    )
