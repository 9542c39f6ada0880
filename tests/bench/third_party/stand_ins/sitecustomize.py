"""Put tiny data in place of torchvision's data sets, in each process of a rehearsal.

Python imports this file at its start, from PYTHONPATH. The scripts and the libraries
that they import stay as they are: only what would be downloaded is replaced.
"""

import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType


def give_ops(module: ModuleType) -> None:
    """Define ops that a torchvision for another torch lacks; nobody calls them."""
    import torch

    for name in "nms", "qnms":
        if not hasattr(torch.ops.torchvision, name):
            shape = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", shape)


def replace_data(module: ModuleType) -> None:
    """Give the names of data sets to ours."""
    import tiny_datasets

    for name in tiny_datasets.__all__:
        setattr(module, name, getattr(tiny_datasets, name))


BEFORE = {"torchvision._meta_registrations": give_ops}
AFTER = {"torchvision.datasets": replace_data}


class Finder:
    """Find modules where Python finds them, and do more when they are imported."""

    @classmethod
    def find_spec(cls, name: str, path=None, target=None):
        """Return how to import a module that has something done before or after."""
        if name not in BEFORE | AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            spec.loader.exec_module = cls.around(name, spec.loader.exec_module)
        return spec

    @classmethod
    def around(cls, name: str, load: Callable) -> Callable:
        """Return what imports a module, and does the rest."""

        def exec_module(module: ModuleType) -> None:
            BEFORE.get(name, lambda _: None)(module)
            load(module)
            AFTER.get(name, lambda _: None)(module)

        return exec_module


sys.meta_path.insert(0, Finder)
