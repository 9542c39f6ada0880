"""The report of a rehearsal, as one page of text."""

import textwrap
from collections.abc import Iterable, Sequence

from allranks.base.report import describe_death, name_ranks
from allranks.base.units import amount
from allranks.clinic import folder
from allranks.diagnose.command import CASES
from allranks.diagnose.suspects import diagnose
from allranks.diagnose.text import Log
from allranks.diagnose.words import found
from allranks.rehearse import hangs
from allranks.rehearse.findings import Finding, Record
from allranks.rehearse.lines import short
from allranks.rehearse.tables import sections

WIDTH = 88  # columns of the text; what has no space in it may be longer
TIED = "\N{NO-BREAK SPACE}"
MOST_ROWS = 12  # of a table, unless everything is asked for
MOST_WORDS = 400  # characters of an error
WHOLE_WORDS = {"break_long_words": False, "break_on_hyphens": False}


def text(
    records: list[Record],
    findings: Sequence[Finding],
    ended: str = "",
    full: bool | None = None,
) -> str:
    """Return the report: how it ended, what was found, and then what was counted.

    Args:
        records: of all processes.
        findings: what the laws found.
        ended: how the run ended, in one sentence.
        full: whether all tables are there, in full length; None leaves out most rows of
            long ones, and all but the first table if a process failed.
    """
    if not records:
        return f"Rehearsal: {ended}, and no process left a record\n"
    failed = failures(records)
    parts = [f"Rehearsal: {ended or 'ended'}; {verdict(failed)}", listed(findings)]
    parts = [_wrapped(line, first="", more="  ") for line in parts]
    brief = bool(failed) and not full
    parts.append(_wrapped(where_next(brief, full), first=""))
    if failed:
        parts.append("\nFailed")
        told = [*failed, *hangs.waits(records), *diagnosis(records)]
        parts += [_wrapped(line, more="  ") for line in told]
    if findings:
        parts.append("\nFound")
        parts += [_wrapped(f"[{f.kind}] {sentence(f)}", more="  ") for f in findings]
    looked, *said = guarded(records)
    parts += ["", _wrapped(looked, first=""), *map(_wrapped, said)]
    for title, names, rows, note in [*sections(records)][: 1 if brief else None]:
        shown = rows if full else rows[:MOST_ROWS]
        parts += [f"\n{title}", _table(names, shown)]
        left = len(rows) - len(shown)
        parts += [f"  ... and {left} more, which --full shows"] if left else []
        parts += [_wrapped(note)] if note else []
    parts += [] if brief else ["", _wrapped(modelled(records), first="")]
    return "\n".join(parts) + "\n"


def verdict(failed: Sequence[str]) -> str:
    """Say in a few words who failed.

    >>> verdict(["rank 1: train.py:8: ValueError: no", "the script: was killed"])
    'rank 1 and the script failed'
    """
    who = dict.fromkeys(line.partition(":")[0] for line in failed)
    return f"{' and '.join(who)} failed" if who else "no process failed"


def listed(findings: Sequence[Finding]) -> str:
    """Name the kinds of all findings, each with its first line."""
    kinds = {f.kind: f for f in reversed(findings)}
    told = [k + (f" at {short(f.line)}" if f.line else "") for k, f in kinds.items()]
    return f"Findings: {len(findings) or 'none'}" + (
        f" ({', '.join(reversed(told))})" if told else ""
    )


def where_next(brief: bool, full: bool | None) -> str:
    """Say what follows, and how to see the rest."""
    if brief:
        return "Read on: what failed and was found follows; --full adds all tables."
    return "Read on: what was found follows, then the tables of all that was counted."


def sentence(finding: Finding) -> str:
    """Return what a finding says, with its line before it."""
    return finding.place + finding.text + ("" if finding.text.endswith("?") else ".")


def guarded(records: list[Record]) -> list[str]:
    """Say what ``allranks.guard`` looked at, what it remarks, and why it ended."""
    told = [record["guard"] for record in records if record["guard"]]
    if not told:
        return ["The guard was left out (--no-guard)."]
    models = sorted({model for one in told for model in one["models"]})
    if not models:
        return [nothing_compared(records)]
    who = {r["rank"] or 0 for r in records if r["guard"] and r["guard"]["models"]}
    said = [
        f"The guard compared {name_ranks(who)} at steps 1, 2, 4, 8, ...: parameters, "
        "gradients, buffers, optimizers and settings of what "
        f"{' and '.join(models)} trains."
    ]
    off = dict.fromkeys(why for one in told for why in one["off"])
    said += [f"It ended early: {why.rstrip('.')}." for why in off]
    remarks = dict.fromkeys(text for one in told for text in one["remarks"])
    return said + [f"It remarks: {text}" for text in remarks]


def nothing_compared(records: list[Record]) -> str:
    """Say why the guard had nothing to compare, and what was compared without it."""
    if any(r["scaled"] > r["steps"] == 0 for r in records):
        return (
            "The guard compared nothing: GradScaler left out each step, because "
            "gradients overflowed 16 bits. Rehearse more steps, as it halves its scale "
            "each time, or begin with a smaller init_scale."
        )
    told = "The guard compared nothing: no step of a model in DDP or FSDP2 was taken."
    if any(r["own"] and r["calls"] for r in records):
        told += (
            " Sums of gradients and weights were compared before steps 1, 2, 4, 8, ..."
        )
    return told


def failures(records: list[Record]) -> list[str]:
    """Return a line for each error or exit code, with the ranks that ended by it."""
    who: dict[str, list[int]] = {}
    for record in records:
        told = describe_death(record["exit"], "") if record["exit"] else ""
        if record["error"]:
            error = record["error"]
            place = f"{short(error['line'])}: " if error["line"] else ""
            first = textwrap.shorten(error["text"], MOST_WORDS, placeholder=" ...")
            told = f"{place}{error['type']}: {first}"
        if told:
            ranks = who.setdefault(told, [])
            ranks += [] if record["rank"] is None else [record["rank"]]
    return [
        f"{name_ranks(ranks) if ranks else 'the script'}: {told}"
        for told, ranks in who.items()
    ]


def diagnosis(records: list[Record]) -> list[str]:
    """Return what the clinic knows of the errors: the case, its cause and its cure."""
    logs = [(f"rank {r['rank']}", r["error"]["log"]) for r in records if r["error"]]
    suspects = diagnose(Log(*logs), folder(CASES)) if logs else []
    if not suspects:
        return []
    case = found(Log(*logs), suspects[0])
    told = [f"{part.capitalize()}: {case[part]}" for part in ("cause", "cure")]
    return [case["title"], *told, f"Read on: {case['read']}"]


def modelled(records: list[Record]) -> str:
    """Say what the modelled clock says, and that it is a model."""
    seconds = max(record["modelled_s"] for record in records)
    return (
        f"By the declared costs of vgpu.Costs, the GPUs would be busy for "
        f"{amount(seconds, 's')}. This models no real GPU, so it does not predict how "
        "fast yours are. Overlap of streams is not rehearsed."
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows in columns; the last one goes on below itself if it is long."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    left = sum(widths) + 2 * len(head)
    made = []
    for *cells, last in lines:
        begun = "".join(f"  {c.ljust(w)}" for c, w in zip(cells, widths, strict=True))
        items = last.replace(" ", TIED).replace(f",{TIED}", ", ")  # break between them
        told = textwrap.wrap(items, max(WIDTH - left, 30), **WHOLE_WORDS) or [""]
        told = [line.replace(TIED, " ") for line in told]
        made += [f"{begun}  {told[0]}".rstrip(), *(" " * left + t for t in told[1:])]
    return "\n".join(made)


def _wrapped(text: str, first: str = "  ", more: str = "") -> str:
    """Return a paragraph in lines; ``more`` is before all but the first."""
    indents = {"initial_indent": first, "subsequent_indent": first + more}
    return textwrap.fill(text, WIDTH, **indents, **WHOLE_WORDS)
