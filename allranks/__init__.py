"""All Ranks: live ranks, a launcher, graded exercises and the arithmetic of the book.

In a notebook: ``%load_ext allranks``, then ``%ranks 4`` and ``%%ranks`` cells.
In Python: ``with Ranks(4) as ranks: ranks.run(fn)`` and ``launch("ch5_ddp", 2)``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from allranks.base.report import RanksError
from allranks.launch import LaunchError, launch

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

# These are imported when they are asked for, because the doctor has to run where hardly
# anything is installed.
_HOMES = {
    "Ranks": "live.ranks",
    "check": "exercises.grader",
    "hints": "exercises.help",
}

__version__ = "0.1.0"  # the one place; pyproject.toml and the release read it
__all__ = ["LaunchError", "Ranks", "RanksError", "check", "hints", "launch"]
__all__ += ["load_ipython_extension"]


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """Give an IPython shell the magics, and predictions their forms in JupyterLab.

    Loading it again changes nothing: readers run a notebook's first cell twice.
    """
    from allranks.live.magic import RanksMagics
    from allranks.predict import forms

    if RanksMagics.__name__ in shell.magics_manager.registry:
        return
    shell.register_magics(RanksMagics)
    forms.watch(shell)
    # Else IPython would answer the second time that it is loaded already.
    loaded = shell.extension_manager.loaded
    shell.events.register("post_execute", lambda: loaded.discard(__name__))


def __getattr__(name: str) -> Any:
    """Import a name of ``_HOMES`` when somebody asks the package for it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
