"""Make imports cheaper: Python runs this file in each process a test starts.

A quarter of the time that importing torch takes goes into looking for garbage among
objects that live for ever, and the tests import torch some hundred times. jsonschema,
which nbformat needs, takes 1.4 s to import only because rfc3987_syntax compiles a
grammar, for a format that no notebook has; jsonschema does without it. And torchrun
asks a dozen times who has called it. If ``python -m`` did, inspect looks for the frozen
module runpy among the files of all modules each time, unless it is told.
"""

import gc
import importlib.machinery
import sys

gc.set_threshold(50_000, 20, 20)
sys.modules["rfc3987_syntax"] = None  # so that it cannot be imported


class Freezer:
    """Leave what torch's import has made out of all later searches for garbage.

    The search when an interpreter ends takes a quarter of a short program's time. The
    program's own garbage is still collected, before its end and then; only what global
    names of its main module hold when it ends may stay.
    """

    @classmethod
    def find_spec(cls, name: str, path=None, target=None):
        """Find torch where Python finds it, and freeze what its import has made."""
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            load = spec.loader.exec_module

            def exec_module(module) -> None:
                load(module)
                import inspect  # torch has imported it, other programs need not

                inspect.modulesbyfile["<frozen runpy>"] = "runpy"
                gc.freeze()

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Freezer)
