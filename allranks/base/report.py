"""What a reader sees: output folded by rank, and one report for a failed cell."""

import linecache
import re
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

_LIBRARY = sysconfig.get_path("stdlib")
_PACKAGE = Path(__file__).parents[1]
_ENGINE = tuple(
    str(_PACKAGE / part)
    for part in (
        *("live", "vgpu", "backends"),
        *("exercises/patches.py", "exercises/watch.py"),  # run below a reader's call
    )
)

# How tqdm ends a bar: elapsed time, time left, and rate.
BAR_TIMES = re.compile(r"\[[\d:?]+<[\d:?]+,[^]]*\]")


class RanksError(RuntimeError):
    """Raised when a cell failed on live ranks; its text is the whole report.

    Attributes:
        errors: the traceback of each rank that raised, by rank.
        deaths: how each rank that died ended, by rank.
        waiting: where each rank that had not finished stood, by rank.
        finished: the ranks that finished.
        note: what else the reader has to know; "" for nothing.
    """

    def __init__(
        self,
        headline: str,
        errors: Mapping[int, str] | None = None,
        deaths: Mapping[int, str] | None = None,
        waiting: Mapping[int, str] | None = None,
        finished: Iterable[int] = (),
        note: str = "",
    ) -> None:
        self.errors, self.deaths = dict(errors or {}), dict(deaths or {})
        self.waiting, self.finished = dict(waiting or {}), list(finished)
        parts = [headline] if headline else []
        parts += [tell_death(who, text) for who, text in group_ranks(self.deaths)]
        parts += [f"{who}:\n{indent(text)}" for who, text in group_ranks(self.errors)]
        parts += [_conjugate(who, text) for who, text in group_ranks(self.waiting)]
        if self.finished:
            parts.append(f"{name_ranks(self.finished)} finished")
        super().__init__("\n".join([*parts, note] if note else parts))

    def _render_traceback_(self) -> list[str]:
        """Tell IPython to show the report alone, not the frames of the engine."""
        text = f"{type(self).__name__}: {self}"
        return [plain(text, sys.stdout.encoding)]


class RanksInterrupted(RanksError, KeyboardInterrupt):
    """Raised when the reader stopped a cell; the report says where each rank stood."""


def fold(outputs: list[str], ranks: list[int]) -> str:
    """Join outputs in rank order, with a prefix on each line; merge equal outputs.

    Args:
        outputs: what each of the ranks printed.
        ranks: which ranks these are, in the same order.

    >>> print(fold(["6\\n", "6\\n", "7\\n"], [0, 1, 2]))
    ranks 0–1: 6
    rank 2: 7
    """
    lines = []
    for who, text in group_ranks(dict(zip(ranks, outputs, strict=True)), key_of):
        lines += [f"{who}: {line}".rstrip() for line in text.splitlines()]
    return "\n".join(lines)


def name_ranks(ranks: list[int]) -> str:
    """Name ranks as a reader would, with a dash for runs of three or more.

    >>> name_ranks([0, 1, 2, 5]), name_ranks([0, 2]), name_ranks([3])
    ('ranks 0–2 and 5', 'ranks 0 and 2', 'rank 3')
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    if len(runs) == 1 and len(runs[0]) > 1:
        return f"ranks {runs[0][0]}–{runs[0][-1]}"
    names = []
    for run in runs:
        names += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else [str(r) for r in run]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def describe_death(exitcode: int, native_stderr: str, place: str = "") -> str:
    """Say how and where a process ended, and show the last lines of its stderr.

    Args:
        exitcode: of the process; negative if a signal ended it, as in ``subprocess``.
        native_stderr: what the process wrote there.
        place: where it stood, such as " in `x` at cell line 1"; "" if that is unknown.
    """
    if exitcode < 0:
        known = {one.value: one.name for one in signal.Signals}
        name = known.get(-exitcode, f"signal {-exitcode}")
        hint = {
            "SIGKILL": " (often the system's out-of-memory killer)",
            "SIGSEGV": " (segmentation fault)",
            "SIGABRT": " (abort)",
        }
        text = f"was killed by {name}{hint.get(name, '')}"
    else:
        text = f"ended its process with exit code {exitcode}"
    tail = native_stderr.strip().splitlines()[-12:]
    return "\n".join([text + place, *[f"  {line}" for line in tail]])


def describe_stack(
    stack: str, sources: Mapping[str, str] | None = None, current: str = ""
) -> str:
    """Find the reader's own line in a faulthandler dump, which is where a rank stands.

    Args:
        stack: the dump.
        sources: the text of each cell, by the file name under which it was compiled.
        current: the file name of the cell that is running; "" if none is.
    """
    sources = sources or {}
    _, current_thread, rest = stack.partition("Current thread")
    stack = rest.partition("\n\n")[0] if current_thread else stack
    # The most recent call comes first. The last line may be cut off, because the rank
    # may still be writing it. What called the engine is none of the reader's, and below
    # it may stand where a coroutine waits.
    engine = re.search(r'live/worker.py", line \d+ in serve\n', stack)
    called, later = (
        (stack[: engine.end()], stack[engine.end() :]) if engine else (stack, "")
    )
    found = re.findall(r'^  File "(.*)", line (\d+) in ', called, re.MULTILINE)
    found += re.findall(r'^  File "(.*)", line (\d+) in await$', later, re.MULTILINE)
    frames = [(name, int(number)) for name, number in found]
    mine = [f for f in frames if is_user_code(f[0])]
    if not mine:
        return "the engine itself" if frames else "native code that does not answer"
    name, number = mine[0]
    if name in sources:
        lines = sources[name].splitlines()
        text = lines[number - 1] if number <= len(lines) else ""
    else:
        text = linecache.getline(name, number)
    place = "cell" if name == current else Path(name).name
    return f"`{text.strip()}` at {place} line {number}"


def need_unix(what: str) -> None:
    """Raise on Windows, whose processes and signals work in another way.

    Args:
        what: the feature that cannot run there; the message begins with it.

    Raises:
        RuntimeError: on Windows.
    """
    if sys.platform == "win32":
        raise RuntimeError(
            f"{what} needs Linux or macOS: on Windows, open this book inside WSL2"
        )


def is_user_code(filename: str) -> bool:
    """Tell whether a file is the reader's own: not ours, torch's or Python's."""
    return not (
        "site-packages" in filename
        or filename.startswith((*_ENGINE, _LIBRARY, "<frozen"))
    )


def group_ranks(
    texts: dict[int, str], key: Callable[[str], str] = str
) -> list[tuple[str, str]]:
    """Name the ranks of each distinct text, ordered by their lowest rank.

    Args:
        texts: by rank.
        key: what has to be equal for two texts to count as one; the text of the lowest
            rank stands for all.
    """
    groups: dict[str, list[int]] = {}
    for rank in sorted(texts):
        groups.setdefault(key(texts[rank]), []).append(rank)
    return [(name_ranks(ranks), texts[ranks[0]]) for ranks in groups.values()]


def key_of(text: str) -> str:
    """Return a text without the times of its progress bars, which differ by rank.

    >>> key_of("50%|##  | 5/10 [00:01<00:01,  4.9it/s]")
    '50%|##  | 5/10 '
    """
    return BAR_TIMES.sub("", text) if "<" in text else text


def say(text: str, end: str = "\n") -> None:
    """Print text, also where the stream knows less than Unicode.

    Args:
        text: may have the dash of "ranks 0–3", or anything that a rank printed.
        end: what follows it.
    """
    print(plain(text, sys.stdout.encoding), end=end)


def plain(text: str, encoding: str | None) -> str:
    """Return text in what an encoding has; the rest is written with backslashes.

    Args:
        text: what is to be printed.
        encoding: of the stream; None for one that takes any text.

    >>> plain("ranks 0–1: 1 → 2", "ascii")
    'ranks 0-1: 1 \\\\u2192 2'
    """
    try:
        text.encode(encoding or "utf8")
        return text
    except UnicodeEncodeError:
        code = text.replace("–", "-").encode(encoding or "utf8", "backslashreplace")
        return code.decode(encoding or "utf8")


def tell_death(who: str, text: str) -> str:
    """Join ``ranks 0–1`` and how each of them ended.

    >>> tell_death("ranks 0–1", describe_death(3, ""))
    'ranks 0–1 ended their processes with exit code 3'
    """
    if who.startswith("ranks"):
        text = re.sub(r"^was ", "were ", text)
        text = re.sub(r"^ended its process", "ended their processes", text)
        text = re.sub(r"^closed its connection", "closed their connections", text)
    return f"{who} {text}"


def _conjugate(who: str, text: str) -> str:
    """Join ``rank 1`` and ``wait in …`` into ``rank 1 waits in …``."""
    verb, _, rest = text.partition(" ")
    return f"{who} {verb}{'' if who.startswith('ranks') else 's'} {rest}"


def indent(text: str) -> str:
    """Indent every line by two spaces."""
    return "\n".join(f"  {line}" for line in text.splitlines())
