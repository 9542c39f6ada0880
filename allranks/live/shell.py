"""What a notebook offers besides Python, on a rank: ``display``, ``!ls`` and ``x?``.

IPython's own display machinery does the work, so a value looks as it would look in the
kernel: ``_repr_html_``, figures of matplotlib, data frames. What it publishes goes over
the pipe to the parent, together with the place in the rank's text where it belongs.
"""

import contextlib
import os
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

from IPython import version_info
from IPython.core import oinspect
from IPython.core.builtin_trap import BuiltinTrap
from IPython.core.displaypub import DisplayPublisher
from IPython.core.events import EventManager, available_events
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from IPython.lib.pretty import pretty
from traitlets.config import SingletonConfigurable

# With one of these, a value brings its own picture.
RICH = [
    f"_repr_{kind}_" for kind in ("html", "svg", "png", "jpeg", "markdown", "latex")
]
RICH += ["_ipython_display_", "_repr_mimebundle_", "_repr_json_", "_repr_javascript_"]
WIDGET = "application/vnd.jupyter.widget-view+json"
PLAIN = ("builtins", "torch")  # modules whose values are text; to ask costs 20 µs
CONTAINERS = (list, tuple, dict, set, frozenset)

Send = Callable[[tuple], None]


class _Publisher(DisplayPublisher):
    """Send what is displayed to the parent."""

    send: Send = staticmethod(lambda message: None)

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: str | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_more: Any,
    ) -> None:
        """Send a bundle of representations, by MIME type."""
        if data.pop(WIDGET, None):
            said = data.get("text/plain", "a widget")
            data = {
                "text/plain": f"{said} (widgets work in the notebook's process only)"
            }
        display_id = (transient or {}).get("display_id")
        self.send(("display", _place(), data, metadata or {}, display_id, update))

    def clear_output(self, wait: bool = False) -> None:
        """Take back what this rank has shown; the parent never shows a gap."""
        self.send(("clear", _place()))


class RankShell(InteractiveShell):
    """The part of IPython's shell that displaying needs, without history or input.

    It does not run the cells. It is there because ``IPython.display`` and matplotlib
    ask for a shell, and publish by it.
    """

    def __init__(self) -> None:
        SingletonConfigurable.__init__(
            self
        )  # not InteractiveShell's, which takes 0.1 s
        self.configurables = [self]
        self.events = EventManager(self, available_events)
        self.display_formatter = DisplayFormatter(parent=self)
        self.display_pub = _Publisher(parent=self)
        self.builtin_trap = BuiltinTrap(shell=self)
        # Without colors, which are made for another background than the reader's.
        plain = {"theme_name": "nocolor"} if version_info[0] > 8 else {}
        self.inspector = oinspect.Inspector(**plain)
        self.user_module = types.ModuleType("__main__")
        self.user_ns = self.user_module.__dict__

    def system(self, cmd: str) -> None:
        """Run ``!cmd``; what it prints is this rank's output."""
        whole = self.var_expand(cmd, depth=1)  # its errors stand where they belong
        code = subprocess.run(whole, shell=True, stderr=subprocess.STDOUT).returncode
        self.user_ns["_exit_code"] = code

    def getoutput(
        self, cmd: str, split: bool = True, depth: int = 0
    ) -> list[str] | str:
        """Return what ``lines = !cmd`` prints."""
        text = subprocess.run(
            self.var_expand(cmd, depth=1),
            shell=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf8",
            errors="replace",
        ).stdout
        return text.splitlines() if split else text

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> None:
        """Describe an object, for ``x?`` and ``x??``; other magics don't come here."""
        if magic_name in ("pinfo", "pinfo2"):
            name = line.strip()
            level = 1 if magic_name == "pinfo2" else 0
            try:
                eval(name, self.user_ns)
            except Exception:
                print(f"Object `{name}` not found.")
                return
            print(self.object_inspect_mime(name, level)["text/plain"].rstrip())

    def enable_gui(self, gui: str | None = None) -> None:
        """Do nothing: a rank has no window, its figures go to the notebook."""

    def showtraceback(self, *args: Any, **_kwargs: Any) -> None:
        """Print the exception of a ``_repr_html_`` that failed."""
        from allranks.live import jobs

        error = args[0][1] if args and args[0] else sys.exc_info()[1]
        print(jobs.describe(error))


def prepare() -> None:
    """Make the shell, once, before ranks are forked: it takes 10 ms."""
    RankShell.instance()


def connect(namespace: dict[str, Any], send: Send) -> None:
    """Let this rank's displays go out by ``send``, and its names be found.

    Args:
        namespace: of the cells.
        send: what takes a message to the parent.
    """
    import builtins
    import getpass

    shell = RankShell.instance()
    shell.display_pub.send = send
    shell.user_module, shell.user_ns = sys.modules["__main__"], namespace
    builtins.get_ipython = lambda: shell
    builtins.input = getpass.getpass = _no_input
    sys.breakpointhook = _no_breakpoint


def show(value: Any) -> None:
    """Show the value of a cell's last expression as a notebook would.

    What has no picture of its own is printed, which costs no message: its text, or for
    the containers of Python IPython's indented form.
    """
    shell = RankShell.instance()
    if not _has_picture(value, shell):
        text = pretty(value) if isinstance(value, CONTAINERS) else repr(value)
        sys.stdout.write(f"{text}\n")  # not print, which a reader may have replaced
        return
    data, metadata = shell.display_formatter.format(value)
    if set(data) == {"text/plain"}:
        print(data["text/plain"])
    elif data:  # else it has displayed itself
        shell.display_pub.publish(data, metadata)


def after_cell() -> None:
    """Run what libraries registered for a cell's end: matplotlib shows its figures."""
    RankShell.instance().events.trigger("post_execute")


def _has_picture(value: Any, shell: RankShell) -> bool:
    if type(value).__module__ in PLAIN:
        return False
    if any(hasattr(type(value), name) for name in RICH):
        return True
    formatters = shell.display_formatter.formatters
    return any(  # registered for a type: figures, once matplotlib is imported
        formatter.type_printers or formatter.deferred_printers
        for kind, formatter in formatters.items()
        if kind != "text/plain"
    )


def _place() -> int:
    """Return how many bytes this rank has printed, to tell where a display stands."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    return os.fstat(1).st_size


def _no_input(*_args: object, **_kwargs: object) -> NoReturn:
    raise RuntimeError(
        "input() would wait for ever: a rank has no keyboard. Ask in a cell without "
        "%%ranks, and send the answer with %push"
    )


def _no_breakpoint(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError(
        "breakpoint() has no keyboard on a rank. Let the cell fail there, with raise "
        "or assert; then %debug_rank opens the debugger on that rank"
    )
