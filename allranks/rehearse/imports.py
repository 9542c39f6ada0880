"""Change a module of torch when a script imports it, and no sooner."""

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def when_imported(name: str, change: Callable[[ModuleType], None]) -> None:
    """Call ``change`` with a module as soon as it has been imported, once.

    What nobody imports costs nothing, since importing torch's larger parts takes
    seconds.
    """
    sys.meta_path.insert(0, _Finder(name, change))


class _Finder:
    """Finds one module, comes first in ``sys.meta_path``, and leaves with the find."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self.name, self.change = name, change

    def find_spec(self, name: str, *args: Any) -> Any:
        """Return where the module is, with what to do when it has been imported."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        own = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            own(module)
            self.change(module)

        spec.loader.exec_module = exec_module
        return spec
