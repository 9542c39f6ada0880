"""Where a cell's output appears: while it runs, and in its final form.

While a cell runs, its lines come in the order of time, and equal lines of several ranks
are folded into one. When it is over, they are shown as ``base.report.fold`` orders
them, by rank. That form doesn't depend on which rank was faster, so a notebook
that is saved is the same after each run.
"""

import shutil
import sys
import time
from base64 import b64encode
from html import escape
from typing import Any

from allranks.base.report import fold, group_ranks, key_of, name_ranks, say
from allranks.live.transcript import Display, Tail, Transcript, shortened

LIMIT = 100_000  # characters that a cell may show at most, with all its ranks
TICK = 0.1  # seconds between two looks at what the ranks print
ROWS = 30  # lines that are shown while the cell runs
FLOOD = 500  # lines that a terminal prints at a time
RATE = 300_000  # bytes a second; Jupyter's servers allow 1,000,000
BESIDE = "display:flex;flex-wrap:wrap;gap:1em 2em;align-items:flex-start"

Transcripts = dict[int, Transcript]  # by rank


class Screen:
    """Where the output of ranks appears; this one stays blank.

    Attributes:
        progress: whether to tell, while the ranks run, where they stand.
        live: whether anything can be shown before the cell is over.
    """

    progress = live = False

    def update(self, transcripts: Transcripts, status: str = "") -> None:
        """Show what the ranks have printed so far, if this screen can.

        Args:
            transcripts: what each rank has shown, by rank.
            status: a line on what the ranks are doing; "" for none.
        """

    def finish(self, transcripts: Transcripts) -> None:
        """Show the final form of the output."""


class Hidden(Screen):
    """Show nothing, for quiet calls; the transcripts have it all."""


class AtEnd(Screen):
    """Print the output when the cell is over: in scripts and tests nobody watches."""

    def finish(self, transcripts: Transcripts) -> None:
        """Print texts, and displays as text."""
        for part in final(transcripts):
            say(part if isinstance(part, str) else part["text/plain"])


class Part(Screen):
    """Show on another screen what comes from some of the ranks."""

    def __init__(self, screen: Screen, ranks: list[int]) -> None:
        self._screen, self._ranks = screen, ranks
        self.progress, self.live = screen.progress, screen.live

    def update(self, transcripts: Transcripts, status: str = "") -> None:
        """Pass on what the chosen ranks have shown so far."""
        self._screen.update(self._chosen(transcripts), status)

    def finish(self, transcripts: Transcripts) -> None:
        """Show their final form."""
        self._screen.finish(self._chosen(transcripts))

    def _chosen(self, transcripts: Transcripts) -> Transcripts:
        return {rank: transcripts[rank] for rank in self._ranks if rank in transcripts}


class Terminal(Screen):
    """Print lines as they come; lines that are not finished are redrawn in place."""

    live = True

    def __init__(self) -> None:
        self._printed = 0  # lines of each rank that are on the screen for good
        self._bars: list[str] = []  # lines below them that will be drawn again
        self._since: dict[int, float] = {}  # when a line was first seen, by its number

    def update(
        self, transcripts: Transcripts, status: str = "", over: bool = False
    ) -> None:
        """Print what is new.

        A line waits for its equals on other ranks, but not longer than a moment.
        """
        now = time.monotonic()
        tails = {
            rank: transcript.tail(FLOOD) for rank, transcript in transcripts.items()
        }
        # What a rank still writes in its last line is not for good.
        whole = [t.end if over or t.whole else t.end - 1 for t in tails.values()]
        good = []
        behind = min((tail.before for tail in tails.values()), default=0)
        if behind > self._printed:  # a flood, of which nobody could read a line
            good.append(f"(... {behind - self._printed:,} lines left out here ...)")
            self._printed = behind
        while any(self._printed < number for number in whole):
            number = self._printed
            since = self._since.setdefault(number, now)
            if not all(number < w for w in whole) and not over and now - since < TICK:
                break
            good += _row(tails, number)
            self._printed += 1
            self._since.pop(number, None)
        bars = [] if over else _rows(tails, self._printed)[:ROWS]
        bars += [status] if status and not over else []
        width = shutil.get_terminal_size().columns - 1  # a longer line would break
        bars = [bar[:width] for bar in bars]
        if good or bars != self._bars:
            up = f"\x1b[{len(self._bars)}A\x1b[J" if self._bars else ""
            lines = [*good, *bars]
            say(up + "\n".join(lines), end="\n" if lines else "")
            self._bars = bars

    def finish(self, transcripts: Transcripts) -> None:
        """Print what is still missing, and displays as text."""
        self.update(transcripts, over=True)
        for part in final(transcripts):
            if not isinstance(part, str):
                say(part["text/plain"])
        if native := fold([t.native for t in transcripts.values()], list(transcripts)):
            say(native)


class Notebook(Screen):
    """Draw an area in the cell's output again and again; replace it at the end.

    Args:
        alone: whether the cell's output has nothing else in it, so that it can be
            cleared; otherwise the area stays, and shows the final form.
        watched: whether a person is there. What executes notebooks for files, such as
            nbconvert, papermill and nbval, shall find the final form alone.
    """

    def __init__(self, alone: bool, watched: bool = True) -> None:
        self._alone, self.live, self._area = alone, watched, None
        self._next, self._last = 0.0, None

    def update(self, transcripts: Transcripts, status: str = "") -> None:
        """Draw the area, if it has changed and the front end can follow."""
        if time.monotonic() < self._next:
            return
        bundle = _area(transcripts, status)
        if bundle == self._last or (self._area is None and not any(bundle.values())):
            return
        self._draw(bundle)
        size = sum(len(text) for text in bundle.values())
        self._next, self._last = time.monotonic() + size / RATE, bundle

    def finish(self, transcripts: Transcripts) -> None:
        """Show the final form."""
        from IPython.display import clear_output, display

        parts = final(transcripts)
        if self._area is not None and not self._alone:
            text = "\n".join(part for part in parts if isinstance(part, str))
            self._draw({"text/plain": text})
            parts = [part for part in parts if not isinstance(part, str)]
        elif self._area is not None:
            clear_output(wait=bool(parts))
        for part in parts:
            if isinstance(part, str):
                say(part)
            else:
                display(part, raw=True)

    def _draw(self, bundle: dict[str, str]) -> None:
        from IPython.display import display

        if self._area is None:
            self._area = display(bundle, raw=True, display_id=True)
        else:
            self._area.update(bundle, raw=True)


def choose(alone: bool = False) -> Screen:
    """Return the screen that fits: whether somebody watches, and on what.

    Args:
        alone: whether a notebook's cell shows nothing but the output of the ranks.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        # A front end with a person before it can be asked for input.
        return Notebook(alone, watched=getattr(kernel, "_allow_stdin", False))
    return Terminal() if sys.stdout.isatty() else AtEnd()


def final(transcripts: Transcripts) -> list[str | dict[str, str]]:
    """Return what a cell shows when it is over: texts, and bundles by MIME type.

    Displays of several ranks stand beside each other, equal ones once.
    """
    parts = {rank: transcript.parts() for rank, transcript in transcripts.items()}
    pieces: list[str | dict[str, str]] = []
    for number in range(max((len(own) for own in parts.values()), default=0)):
        at = {rank: own[number] for rank, own in parts.items() if number < len(own)}
        if number % 2:
            pieces += _beside(at)
        elif text := fold(list(at.values()), list(at)):
            pieces.append(shortened(text, LIMIT))
    if native := fold([t.native for t in transcripts.values()], list(transcripts)):
        pieces.append(shortened(native, LIMIT))
    return pieces


def _beside(displays: dict[int, Display]) -> list[dict[str, str]]:
    """Put displays of several ranks into one bundle, each under its ranks' name."""
    # Equal in what is seen: the text may have the address of an object.
    drawn = {rank: _html(display.data) for rank, display in displays.items()}
    groups: dict[str, list[int]] = {}
    for rank in sorted(displays):
        look = drawn[rank] or repr(displays[rank].data)
        groups.setdefault(look, []).append(rank)
    figures, texts, raw = [], [], []
    for ranks in groups.values():
        data, who = displays[ranks[0]].data, name_ranks(ranks)
        texts += [f"{who}: {line}" for line in data.get("text/plain", "").splitlines()]
        if (html := drawn[ranks[0]]) is None:
            raw.append((who, data))
            continue
        figures.append(
            '<figure style="margin:0;min-width:0;max-width:100%;overflow-x:auto">'
            f"<figcaption>{who}</figcaption>{html}</figure>"
        )
    bundles = [{"text/plain": f"{who}:"} | data for who, data in raw]
    if figures:
        html = f'<div style="{BESIDE}">{"".join(figures)}</div>'
        bundles.insert(0, {"text/plain": "\n".join(texts), "text/html": html})
    return bundles


def _html(data: dict[str, Any]) -> str | None:
    """Return a bundle as HTML; None if only the front end can draw it."""
    if "text/html" in data:
        return data["text/html"]
    if "image/svg+xml" in data:
        return data["image/svg+xml"]
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            code = data[kind]
            code = b64encode(code).decode() if isinstance(code, bytes) else code
            alt = escape(data.get("text/plain", "a picture"), quote=True)
            source = f"data:{kind};base64,{code.replace(chr(10), '')}"
            return f'<img src="{source}" alt="{alt}" style="max-width:100%">'
    if any(kind in ("text/markdown", "text/latex") for kind in data) or any(
        kind.startswith("application/") for kind in data
    ):
        return None
    return f"<pre>{escape(data.get('text/plain', ''))}</pre>"


def _area(transcripts: Transcripts, status: str) -> dict[str, str]:
    """Return what a notebook shows while its cell runs."""
    tails = {rank: transcript.tail(ROWS) for rank, transcript in transcripts.items()}
    begin = max(0, max((tail.end for tail in tails.values()), default=0) - ROWS)
    rows = _rows(tails, begin)
    if begin:
        rows.insert(0, f"(... {begin:,} lines before these ...)")
    text = "\n".join([*rows, *([status] if status else [])])
    displays = {
        rank: [part for part in transcript.parts() if isinstance(part, Display)]
        for rank, transcript in transcripts.items()
    }
    pictures = []
    for number in range(max((len(own) for own in displays.values()), default=0)):
        at = {rank: own[number] for rank, own in displays.items() if number < len(own)}
        pictures += [bundle.get("text/html", "") for bundle in _beside(at)]
    if not any(pictures):
        return {"text/plain": text}
    pre = f"<pre>{escape(text)}</pre>" if text else ""
    return {"text/plain": text, "text/html": pre + "".join(pictures)}


def _rows(tails: dict[int, Tail], begin: int) -> list[str]:
    """Return the lines from a number on, in their order, each with its ranks."""
    end = max((tail.end for tail in tails.values()), default=0)
    return [row for number in range(begin, end) for row in _row(tails, number)]


def _row(tails: dict[int, Tail], number: int) -> list[str]:
    """Return the line of this number of each rank, equal ones folded."""
    lines = {rank: tail.line(number) for rank, tail in tails.items()}
    lines = {rank: line for rank, line in lines.items() if line is not None}
    return [f"{who}: {text}".rstrip() for who, text in group_ranks(lines, key_of)]
