"""The ``%ranks`` and ``%%ranks`` magics: a thin layer over :class:`Ranks`."""

import argparse
import contextlib
import keyword
import shlex
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn

from IPython.core.error import StdinNotImplementedError, UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class

from allranks.base.report import (
    RanksError,
    RanksInterrupted,
    group_ranks,
    name_ranks,
    plain,
    say,
)
from allranks.live import jobs
from allranks.live.capacity import check_possible, where
from allranks.live.ranks import Ranks
from allranks.live.screen import Hidden, Part, choose
from allranks.live.server import warm_up
from allranks.predict.forms import asking


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


def _variable(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ValueError(text)
    return text


# argparse names a type in its errors by the function that reads it.
_rank_list.__name__, _seconds.__name__ = "list of ranks", "number of seconds"
_variable.__name__ = "name of a variable"

RANKS = {"type": _rank_list, "metavar": "RANKS"}

LINE = _Parser("%ranks", add_help=False)
LINE.add_argument("what", nargs="?", help="the number of ranks, or: status, stop")
LINE.add_argument("--device", default="cpu", help="cpu, or an accelerator: cuda")
LINE.add_argument("--backend", default="", help="gloo, shm or link:eth1")
LINE.add_argument("--gpus", action="store_true", help="virtual, with cuda and nccl")
LINE.add_argument(
    "--timeout", type=_seconds, default=60.0, help="seconds of silence that are a hang"
)
LINE.add_argument("--progress", action="store_true", help="in each cell from now on")
LINE.add_argument("--timeline", action="store_true", help="draw the last cell")

VGPUS = _Parser("%vgpus", add_help=False)
VGPUS.add_argument("what", help="the number of virtual GPUs, or: stop")
VGPUS.add_argument("--memory", default="1 GiB", help='of each: "64 MiB"')

CELL = _Parser("%%ranks", add_help=False)
CELL.add_argument("--on", "--only", **RANKS, help="run on these ranks only: 0,2")
CELL.add_argument("--from", dest="from_ranks", **RANKS, help="show only these ranks")
CELL.add_argument("--timeout", type=_seconds, help="seconds of silence that are a hang")
CELL.add_argument("--quiet", action="store_true", help="don't show what ranks print")
CELL.add_argument("--progress", action="store_true", help="show where ranks stand")
CELL.add_argument("--out", type=_variable, help="variable for the last values")

PUSH = _Parser("%push", add_help=False)
PUSH.add_argument("names", nargs="+", help="variables of the notebook: x, y")
PUSH.add_argument("--on", **RANKS, help="only to these ranks")
PUSH.add_argument("--timeout", type=_seconds, help="seconds that are a hang")

PULL = _Parser("%pull", add_help=False)
PULL.add_argument("names", nargs="+", help="variables of the ranks: loss")
PULL.add_argument("--on", **RANKS, help="only from these ranks")
PULL.add_argument("--timeout", type=_seconds, help="seconds that are a hang")

DEBUG = _Parser("%debug_rank", add_help=False)
DEBUG.add_argument("rank", type=int, help="the rank to look at")


class CellSyntaxError(Exception):
    """Raised for a cell that is not Python; IPython shows the cell's line alone."""

    def _render_traceback_(self) -> list[str]:
        return traceback.format_exception_only(self.__cause__)


CellSyntaxError.__name__ = "SyntaxError"  # which is what front ends show


@magics_class
class RanksMagics(Magics):
    """The magics: ``%ranks 4`` starts live ranks, ``%%ranks`` runs a cell on them."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._ranks: Ranks | None = None
        self._progress = False
        self._num_cells = 0
        with contextlib.suppress(OSError):  # %ranks will say what is wrong
            warm_up()  # so torch is being imported while the reader reads on

    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> None:
        """Start, list or end the ranks (``N | status | stop``), or run a cell on them.

        ``%ranks 4`` starts four, ``%ranks status`` says which live, ``%ranks stop``
        ends them, and ``%ranks --timeline`` draws when each worked and waited in the
        last cell. ``%%ranks`` in the first line of a cell runs the cell on every rank.
        """
        parser = LINE if cell is None else CELL
        with _one_sentence():
            options = parser.parse_args(shlex.split(line))
            if cell is None:
                self._command(options)
            else:
                self._run(options, cell)

    @line_magic
    def push(self, line: str) -> None:
        """Copy variables of the notebook to the ranks (``%push x y [--on 0,1]``)."""
        with _one_sentence():
            options = PUSH.parse_args(shlex.split(line))
            names = _names(options.names)
            for name in names:
                if name not in self.shell.user_ns:
                    raise ValueError(f"%push {name}: the notebook has no such variable")
            values = {name: self.shell.user_ns[name] for name in names}
            self._live().push(values, options.on, options.timeout)

    @line_magic
    def pull(self, line: str) -> None:
        """Copy variables of the ranks to the notebook (``%pull loss [--on 0,1]``).

        A variable that is equal on all ranks comes as one value, else a list by rank.
        """
        with _one_sentence():
            options = PULL.parse_args(shlex.split(line))
            _import_torch()
            for name in _names(options.names):
                try:
                    values = self._live().pull(name, options.on, options.timeout)
                except RanksError as error:
                    who, text = next(iter(group_ranks(error.errors)))
                    raise ValueError(f"%pull {name}: {who}: {text}") from None
                equal = all(jobs.are_equal(values[0], value) for value in values[1:])
                self.shell.user_ns[name] = values[0] if equal else values
                how = "one value" if equal else f"a list of {len(values)}, by rank"
                say(f"{name}: {how}")

    @line_magic
    def debug_rank(self, line: str) -> None:
        """Open a post-mortem debugger on one rank (``%debug_rank 2``)."""
        with _one_sentence():
            rank = DEBUG.parse_args(shlex.split(line)).rank
            self._live().debug(rank, self._ask)

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

    def _live(self) -> Ranks:
        if self._ranks is None:
            raise ValueError("there are no ranks yet: run %ranks 4 first")
        return self._ranks

    def _ask(self, prompt: str) -> str:
        """Return a line that the reader types; "" where nobody can type."""
        try:
            return input(prompt) + "\n"
        except KeyboardInterrupt:
            return ""
        except (EOFError, StdinNotImplementedError):
            say("(nobody can answer here, so the debugger has ended)")
            return ""

    def _command(self, options: argparse.Namespace) -> None:
        if options.timeline:
            self._draw_timeline()
            return
        if options.progress and options.what is None:
            self._live()  # raises if there are none that could make progress
            self._progress = True
            return
        what = options.what or ""
        if what == "status":
            say(self._ranks.status() if self._ranks else "no ranks: %ranks 4 starts 4")
            return
        if what != "stop" and not what.lstrip("-").isdecimal():
            raise ValueError(
                f"{f'%ranks {what}'.rstrip()}: say how many (%ranks 4), or status, "
                "stop, --timeline"
            )
        if what != "stop":
            asked = int(what), options.device, options.backend, options.gpus
            check_possible(*asked)
        old, self._ranks = self._ranks, None
        if old is not None:  # a second %ranks replaces those that are running
            old.close()
        if what == "stop":
            return
        num, device, backend, gpus = asked
        self._ranks = Ranks(num, device, options.timeout, backend, gpus)
        self._ranks.hold, self._progress = True, options.progress
        who = name_ranks(list(range(self._ranks.world_size)))
        say(f"{who} on {where(*asked)}")

    def _draw_timeline(self) -> None:
        from IPython.display import display

        from allranks.topics.timelines.picture import (
            timeline,  # here: cells need none of it
        )

        display(timeline(self._live().spans(), f"ranks cell {self._num_cells}"))

    def _run(self, options: argparse.Namespace, cell: str) -> None:
        ranks = self._live()
        self._num_cells += 1  # In[n] would differ from one front end to the next
        screen = Hidden() if options.quiet else choose(alone=not asking())
        screen.progress = options.progress or self._progress
        if options.from_ranks is not None:
            ranks.check(options.from_ranks)
            screen = Part(screen, options.from_ranks)
        try:
            values = ranks.run_cell(
                "\n" + cell,  # so that line numbers are those of the notebook's cell
                f"ranks cell {self._num_cells}",
                timeout=options.timeout,
                on=options.on,
                values=options.out is not None,
                screen=screen,
            )
        except SyntaxError as error:
            raise CellSyntaxError(str(error)) from error
        if options.out is not None:
            self.shell.user_ns[options.out] = values


@contextlib.contextmanager
def _one_sentence() -> Iterator[None]:
    """Show what is wrong with a command as one line, without a traceback."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise UsageError(plain(str(error), sys.stdout.encoding)) from None
    except KeyboardInterrupt as error:
        if isinstance(error, RanksInterrupted):  # which says more
            raise
        raise RanksInterrupted("interrupted") from None


def _import_torch() -> None:
    """Import torch into the notebook, and say so meanwhile, for it takes seconds."""
    if "torch" not in sys.modules and (screen := choose()).live:
        screen.update({}, "importing torch into the notebook, once")
        import torch  # noqa: F401

        screen.finish({})


def _names(words: list[str]) -> list[str]:
    """Return variable names that a reader has separated by spaces or commas."""
    names = [name for word in words for name in word.split(",") if name]
    for name in names:
        if not name.isidentifier():
            raise ValueError(f"{name!r} is not the name of a variable")
    return names
