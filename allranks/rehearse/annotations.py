"""What GitHub shows beside the lines of a pull request.

A program on GitHub's runners annotates a line by printing a *workflow command*:
https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

import os
from collections.abc import Iterator, Sequence

from allranks.rehearse.findings import Finding, Record


def commands(
    records: Sequence[Record], findings: Sequence[Finding], strict: bool
) -> Iterator[str]:
    """Yield a workflow command for each failure and each finding.

    Args:
        records: of all processes.
        findings: what the laws found.
        strict: whether a finding is an error too, and not a warning.
    """
    errors = (record["error"] for record in records if record["error"])
    for kind, text, line in dict.fromkeys(
        (e["type"], e["text"], e["line"]) for e in errors
    ):
        yield _command("error", kind, text, line)
    for finding in findings:
        level = "error" if strict else "warning"
        yield _command(level, finding.kind, finding.text, finding.line)


def _command(level: str, title: str, text: str, line: str) -> str:
    file, _, number = line.rpartition(":")
    where = {"file": _in_repository(file), "line": number} if file else {}
    values = where | {"title": f"rehearsal: {title}"}
    told = ",".join(f"{name}={_escape(value, ':,')}" for name, value in values.items())
    return f"::{level} {told}::{_escape(text)}"


def _in_repository(file: str) -> str:
    """Return a path from the root of what was checked out."""
    return os.path.relpath(file, os.environ.get("GITHUB_WORKSPACE") or None)


def _escape(text: str, more: str = "") -> str:
    """Write the characters that a command would end at as GitHub reads them.

    >>> _escape("50 %: a, b", ":,")
    '50 %25%3A a%2C b'
    """
    for sign in "%\r\n" + more:  # the percent sign first
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text
