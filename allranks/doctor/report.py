"""Print what was found: a line per check for people, JSON for programs."""

from __future__ import annotations

import json
import socket
import textwrap


def show(facts: dict[str, str]) -> None:
    """Print the line of a check, and below it what to do."""
    indent = " " * 19
    head = f"{facts['status']:5} {facts['name']:12} "
    lines = textwrap.wrap(facts["found"], 60, break_long_words=False)
    print(head + f"\n{indent}".join(lines), flush=True)
    if facts["fix"]:
        print(f"{indent}-> {facts['fix']}", flush=True)


def by_status(found: list[dict]) -> dict[str, list[str]]:
    """Group the names of the checks by their status."""
    names = {"ok": [], "warn": [], "fail": [], "skip": []}
    for facts in found:
        names[facts["status"]].append(facts["name"])
    return names


def sum_up(found: list[dict], took: float) -> None:
    """Print the number of checks of each status, and which had nothing to look at."""
    names = by_status(found)
    counts = [f"{len(of)} {status}" for status, of in names.items()]
    print(f"{socket.gethostname()}: {', '.join(counts)}, in {took:.1f} s")
    if names["skip"]:
        print(f"nothing to look at for {', '.join(names['skip'])}")


def as_json(found: list[dict], took: float) -> str:
    """Return everything as JSON: the names by status, and each check in full."""
    facts = {"host": socket.gethostname(), "seconds": round(took, 2)}
    return json.dumps({**facts, **by_status(found), "checks": found}, indent=1)
