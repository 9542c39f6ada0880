"""The ``%ranks`` and ``%%ranks`` magics: a thin layer over :class:`Ranks`."""

import argparse
import shlex
from typing import NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class

from allranks.live.processes import check_possible, warm_up
from allranks.live.ranks import Ranks
from allranks.report import name_ranks


class _Parser(argparse.ArgumentParser):
    """An argument parser that answers bad input with one sentence, not an exit."""

    def error(self, message: str) -> NoReturn:
        """Raise what IPython shows as one line."""
        raise UsageError(f"{self.prog}: {message}")


def _rank_list(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise ValueError(text)
    return seconds


# argparse names a type in its errors by the function that reads it.
_rank_list.__name__, _seconds.__name__ = "list of ranks", "number of seconds"

LINE = _Parser("%ranks", add_help=False)
LINE.add_argument("what", help="the number of ranks to start, or: status, stop")
LINE.add_argument("--device", default="cpu", help="cpu, or an accelerator: cuda")
LINE.add_argument("--timeout", type=_seconds, default=60.0, help="seconds per cell")

VGPUS = _Parser("%vgpus", add_help=False)
VGPUS.add_argument("what", help="the number of virtual GPUs, or: stop")
VGPUS.add_argument("--memory", default="1 GiB", help='of each: "64 MiB"')

CELL = _Parser("%%ranks", add_help=False)
CELL.add_argument("--on", type=_rank_list, help="only these ranks: 0,2")
CELL.add_argument("--timeout", type=_seconds, help="seconds until the cell is hung")
CELL.add_argument("--quiet", action="store_true", help="don't show what ranks print")
CELL.add_argument("--out", help="store the ranks' last values in this variable")


@magics_class
class RanksMagics(Magics):
    """The magics: ``%ranks 4`` starts live ranks, ``%%ranks`` runs a cell on them."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._ranks: Ranks | None = None
        self._num_cells = 0
        warm_up()  # so torch is being imported while the reader reads on

    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> None:
        """Start, list or end the ranks (``N | status | stop``), or run a cell on them.

        ``%ranks 4`` starts four, ``%ranks status`` says which live, ``%ranks stop``
        ends them. ``%%ranks`` in the first line of a cell runs the cell on every rank.
        """
        if cell is None:
            options = LINE.parse_args(shlex.split(line))
        else:
            options = CELL.parse_args(shlex.split(line))
        try:
            if cell is None:
                self._command(options)
            else:
                self._run(options, cell)
        except ValueError as error:
            raise UsageError(str(error)) from None

    @line_magic
    def vgpus(self, line: str) -> None:
        """Plug virtual GPUs into this notebook's process, or unplug them (N | stop)."""
        from allranks import vgpu  # here, because live ranks need none of it

        options = VGPUS.parse_args(shlex.split(line))
        if options.what == "stop":
            vgpu.unplug()
            return
        if not options.what.lstrip("-").isdecimal():
            raise UsageError(f"%vgpus {options.what}: say how many (%vgpus 2) or stop")
        try:
            machine = vgpu.plug_in(int(options.what), options.memory)
        except (ValueError, RuntimeError) as error:
            raise UsageError(str(error)) from None
        last = len(machine.devices) - 1
        names = f"vgpu:0–{last}" if last else "vgpu:0"
        print(f"{names}, {options.memory} each")

    def _command(self, options: argparse.Namespace) -> None:
        if options.what == "status":
            print(
                self._ranks.status() if self._ranks else "no ranks: %ranks 4 starts 4"
            )
            return
        if options.what != "stop" and not options.what.lstrip("-").isdecimal():
            raise ValueError(
                f"%ranks {options.what}: say how many (%ranks 4), status or stop"
            )
        if options.what != "stop":
            check_possible(int(options.what), options.device)
        if self._ranks is not None:  # a second %ranks replaces those that are running
            self._ranks.close()
            self._ranks = None
        if options.what == "stop":
            return
        self._ranks = Ranks(int(options.what), options.device, options.timeout)
        print(f"{name_ranks(list(range(self._ranks.world_size)))} on {options.device}")

    def _run(self, options: argparse.Namespace, cell: str) -> None:
        if self._ranks is None:
            raise ValueError("there are no ranks yet: run %ranks 4 first")
        self._num_cells += 1  # In[n] would differ from one front end to the next
        values = self._ranks.run_cell(
            "\n" + cell,  # so that line numbers are those of the notebook's cell
            f"ranks cell {self._num_cells}",
            timeout=options.timeout,
            on=options.on,
            quiet=options.quiet,
            values=options.out is not None,
        )
        if options.out is not None:
            self.shell.user_ns[options.out] = values
