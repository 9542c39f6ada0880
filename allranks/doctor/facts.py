"""What a process can read about its machine with the standard library alone."""

from __future__ import annotations

import functools
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path


def env(name: str, default: str = "") -> str:
    """Return an environment variable, or a default if it is not set."""
    return os.environ.get(name, default)


def text_of(path: str | Path) -> str:
    """Return a small file's text, or an empty one if it cannot be read."""
    try:
        return Path(path).read_text("utf8", "replace").strip()
    except OSError:
        return ""


def in_a_line(error: object) -> str:
    """Return an exception's type and the first line of its message."""
    text = str(error) or "no answer"
    return f"{type(error).__name__}: {text}".splitlines()[0]


def version(text: str) -> tuple[int, ...]:
    """Turn a text such as 580.65.06 into (580, 65, 6), to be compared."""
    return tuple(map(int, re.findall(r"\d+", text)))


def gib(num_bytes: float) -> str:
    """Write a number of bytes in GiB."""
    return f"{num_bytes / 2**30:.1f} GiB"


def integer(text: str) -> int:
    """Read a number; a text that is none, such as nvidia-smi's [N/A], counts as 0."""
    return int(text) if text.isdecimal() else 0


def limits(name: str) -> Iterator[str]:
    """Yield the texts of a cgroup's file, from this process's group to the root."""
    for line in text_of("/proc/self/cgroup").splitlines():
        _, kind, path = line.split(":", 2)
        root, below = Path("/sys/fs/cgroup", kind), Path(path.lstrip("/"))
        for folder in [below, *below.parents]:  # kind is empty in version 2
            yield text_of(root / folder / name)


def num_cores() -> int:
    """Count the cores that this process may use, by affinity and by its cgroup."""
    usable = getattr(os, "sched_getaffinity", None)  # macOS has none
    cores = len(usable(0)) if usable else os.cpu_count()
    old = limits("cpu.cfs_quota_us"), limits("cpu.cfs_period_us")  # version 1
    for text in [*limits("cpu.max"), *map("{} {}".format, *old)]:
        if re.match(r"\d+ \d+$", text):
            quota, period = map(int, text.split())
            cores = min(cores, max(1, quota // period))
    return cores


@functools.lru_cache(1)
def addresses() -> list[str]:
    """Return the addresses of this machine's own name, in the resolver's order.

    Raises:
        OSError: if the name has none.
    """
    found = socket.getaddrinfo(socket.gethostname(), None)
    return list(dict.fromkeys(entry[4][0] for entry in found))


def interfaces() -> dict[str, str]:
    """Return the IPv4 address of each network interface of Linux that has one."""
    import fcntl

    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        for _, name in socket.if_nameindex():
            question = struct.pack("256s", name.encode())
            try:  # 0x8915 is Linux's SIOCGIFADDR
                answer = fcntl.ioctl(some.fileno(), 0x8915, question)
                found[name] = socket.inet_ntoa(answer[20:24])
            except OSError:
                pass  # it has no address
    return found
