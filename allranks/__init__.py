"""All Ranks: live ranks, a launcher and rank arithmetic for the book.

In a notebook: ``%load_ext allranks``, then ``%ranks 4`` and ``%%ranks`` cells.
In Python: ``with Ranks(4) as ranks: ranks.run(fn)`` and ``launch("ch5_ddp", 2)``.
"""

from allranks.exercises import check, hints
from allranks.launch import LaunchError, launch
from allranks.ranks import Ranks
from allranks.report import RanksError

__all__ = ["LaunchError", "Ranks", "RanksError", "check", "hints", "launch"]
__all__ += ["load_ipython_extension"]


def load_ipython_extension(shell) -> None:
    """Give an IPython shell the ``%ranks`` and ``%%ranks`` magics."""
    from allranks.magic import RanksMagics

    shell.register_magics(RanksMagics)
