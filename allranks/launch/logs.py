"""What a launch wrote: each rank's lines, and why it failed."""

import re
import signal
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from allranks.base.paths import ROOT
from allranks.base.report import describe_death, describe_stack, group_ranks, indent

# torchrun's closing summary names each failed rank. It ends the others with SIGTERM, so
# a rank that this signal ended is not the one that failed first.
_FAILED = re.compile(r"rank +: (\d+) \(local_rank: \d+\)\s+exitcode +: (-?\d+)")
_TERMINATED = -signal.SIGTERM


@dataclass
class Launch:
    """What a launch wrote, with each rank's lines apart, and its exit code.

    Attributes:
        lines: the lines that each rank wrote to stdout, by rank.
        errors: what each rank wrote to stderr, by rank.
        exit_code: 0 if every rank ended well; otherwise that of the first node whose
            torchrun failed.
    """

    lines: dict[int, list[str]]
    errors: dict[int, str]
    exit_code: int

    def __str__(self) -> str:
        return "\n".join(
            line for rank in sorted(self.lines) for line in self.lines[rank]
        )


class LaunchError(RuntimeError):
    """Raised when a launch failed; its text has the failing ranks' own tracebacks.

    Attributes:
        launch: everything that the ranks wrote until then.
        exit_code: that of the launch.
        errors: what each rank wrote to stderr, by rank.
    """

    def __init__(self, text: str, launch: Launch) -> None:
        super().__init__(text)
        self.launch = launch
        self.exit_code, self.errors = launch.exit_code, launch.errors

    def _render_traceback_(self) -> list[str]:
        """Tell IPython to show the report alone, not the frames of the launcher."""
        return [f"{type(self).__name__}: {self}"]


def read(
    logs: list[Path], counts: list[int], returncodes: list[int]
) -> tuple[Launch, dict[int, int]]:
    """Return the :class:`Launch`, and the exit code of each rank that failed.

    Args:
        logs: the log folder of each node's torchrun, in order of node rank.
        counts: local world size of each node.
        returncodes: exit code of each node's torchrun.
    """
    lines, errors, exit_codes = {}, {}, {}
    first = 0  # the node's first rank
    for log, count in zip(logs, counts, strict=True):
        for local_rank in range(count):
            rank = first + local_rank
            lines[rank] = _attempts(log, local_rank, "stdout.log").splitlines()
            errors[rank] = _attempts(log, local_rank, "stderr.log")
        first += count
        own_output = (log / "torchrun").read_text("utf8", "replace")
        for rank, code in _FAILED.findall(own_output):
            exit_codes[int(rank)] = int(code)
        if any(returncodes) and not exit_codes and "Error" in own_output:
            errors.setdefault(first - count, "")
            errors[first - count] = errors[first - count] or own_output
    exit_code = next((code for code in returncodes if code), 0)
    return Launch(lines, errors, exit_code), exit_codes


def explain(
    name: str, launch: Launch, exit_codes: dict[int, int], limit: float | None
) -> str:
    """Say in the ranks' own words why a launch failed.

    Args:
        name: of the script.
        launch: what the ranks wrote.
        exit_codes: of the ranks that failed, by rank.
        limit: the timeout in seconds, if the launch ran into it; otherwise None.
    """
    if limit is not None:
        parts = [f"{name} did not end within {limit:g} s"]
        places = {
            rank: describe_stack(text)
            for rank, text in launch.errors.items()
            if "most recent call first" in text
        }
        parts += [f"{who} stood at {text}" for who, text in group_ranks(places)]
        return "\n".join(parts)
    failed = {r: c for r, c in exit_codes.items() if c != _TERMINATED} or exit_codes
    texts = {rank: _last_words(launch.errors[rank], failed[rank]) for rank in failed}
    texts = texts or {
        rank: text.strip() for rank, text in launch.errors.items() if text
    }
    parts = [f"{name} failed (exit code {launch.exit_code})"]
    for who, text in group_ranks(texts):
        if text.startswith("was killed"):
            parts.append(f"{who} {text}")
        elif "\n" in text:
            parts.append(f"{who}:\n{indent(text)}")
        else:  # one sentence for all, whichever of the ranks had time to print it
            parts.append(text)
    return "\n".join(parts)


def _attempts(log: Path, local_rank: int, name: str) -> str:
    """Join what a rank wrote before a restart to what it wrote afterwards."""
    files = log.glob(f"*/attempt_*/{local_rank}/{name}")
    return "".join(f.read_text("utf8", "replace") for f in sorted(files))


def _last_words(stderr: str, exit_code: int) -> str:
    """Shorten a rank's stderr to its traceback, its sentence, or how it was killed."""
    stderr = re.sub(r"(?m)^\[rank\d+\]: ?", "", stderr)  # torch's excepthook adds it
    for folder in (sysconfig.get_path("purelib"), str(ROOT)):
        stderr = stderr.replace(f"{folder}/", "")
    _, traceback, rest = stderr.partition("Traceback (most recent call last):")
    if traceback:
        return f"{traceback}{rest}".strip()
    if exit_code < 0:
        stack = describe_stack(stderr) if "Current thread" in stderr else ""
        native = stderr.partition("Fatal Python error")[0]
        return describe_death(exit_code, native, stack and f" in {stack}")
    return stderr.strip() or f"ended with exit code {exit_code} and without a word"
