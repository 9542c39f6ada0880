"""Make imports cheaper and kernels safer: Python runs this in each process of a test.

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


def freeze(torch) -> None:
    """Leave what torch's import has made out of all later searches for garbage.

    The search when an interpreter ends takes a quarter of a short program's time. The
    program's own garbage is still collected, before its end and then; only what global
    names of its main module hold when it ends may stay.
    """
    import inspect  # torch has imported it, other programs need not

    inspect.modulesbyfile["<frozen runpy>"] = "runpy"
    gc.freeze()


def keep_ports(connect) -> None:
    """Give kernels ports that the system gives to nobody who asks for any.

    jupyter_client finds a free port, lets go of it, and tells the kernel, which binds
    it a second later. A rank of another test may have been given it meanwhile, and then
    the kernel dies: one of a hundred, while many ranks start.
    """

    import contextlib  # after jupyter_client has, which other programs do not need
    import random
    import socket

    def find_available_port(self, ip: str) -> int:
        while True:
            port = random.randrange(*PORTS)
            if port in self.currently_used_ports:  # by another socket of this kernel
                continue
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind((ip, port))
                self.currently_used_ports.add(port)
                return port

    connect.LocalPortCache.find_available_port = find_available_port


PORTS = 12_000, 32_000  # Linux gives those from 32768 on, others from 49152 on
AFTER = {"torch": freeze, "jupyter_client.connect": keep_ports}


class Finder:
    """Find these modules where Python finds them; call a function after the import."""

    @classmethod
    def find_spec(cls, name: str, path=None, target=None):
        """Return what finds and loads a module, if it is one of these."""
        if name not in AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            load = spec.loader.exec_module

            def exec_module(module) -> None:
                load(module)
                AFTER[name](module)

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder)
