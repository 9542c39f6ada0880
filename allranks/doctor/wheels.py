"""Load torch when a check needs it, and tell which driver and GPU a build needs."""

from __future__ import annotations

import functools
import re
from types import ModuleType

from allranks.doctor.facts import version

# docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
OLDEST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}


@functools.lru_cache(1)
def load() -> tuple[ModuleType | None, Exception | None]:
    """Return (torch, None), or (None, the error) if it cannot be imported."""
    try:
        import torch
        import torch.distributed
    except Exception as error:  # torch is missing, or one of its libraries
        return None, error
    return torch, None


def driver_runs(driver: str, cuda: str) -> bool | None:
    """Tell whether a driver is new enough for a wheel's CUDA; None if unknown."""
    oldest = OLDEST_DRIVER.get(version(cuda)[0])
    return None if oldest is None else version(driver) >= oldest


def arch_runs(capability: str, archs: list[str]) -> bool:
    """Tell whether a wheel with these sm_ (code) and compute_ (PTX) runs on a GPU."""
    gpu, pattern = version(capability), r"(sm|compute)_(\d+)(\d)([a-z]?)"
    for kind, major, minor, only in re.findall(pattern, " ".join(archs)):
        built = int(major), int(minor)
        same = kind == "compute" or built[0] == gpu[0]  # code differs between majors
        if same and built <= gpu and (built == gpu or not only):
            return True
    return False
