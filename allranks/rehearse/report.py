"""The report of a rehearsal, as one page of text."""

import textwrap
from collections.abc import Iterable, Sequence

from allranks.clinic import folder
from allranks.diagnose.command import CASES
from allranks.diagnose.suspects import diagnose
from allranks.diagnose.text import Log
from allranks.diagnose.words import found
from allranks.rehearse import hangs
from allranks.rehearse.findings import Finding, Record
from allranks.rehearse.lines import short
from allranks.rehearse.tables import sections
from allranks.report import describe_death, name_ranks
from allranks.sums.units import amount

WIDTH = 88  # columns of the text; what has no space in it may be longer
TIED = "\N{NO-BREAK SPACE}"
WHOLE_WORDS = {"break_long_words": False, "break_on_hyphens": False}


def text(records: list[Record], findings: Sequence[Finding], ended: str = "") -> str:
    """Return the report.

    Args:
        records: of all processes.
        findings: what the laws found.
        ended: how the run ended, in one sentence.
    """
    if not records:
        return f"Rehearsal: {ended}, and no process left a record\n"
    parts = [_wrapped(f"Rehearsal: {ended}" if ended else "Rehearsal", first="")]
    for title, head, rows, note in sections(records):
        parts += [f"\n{title}", _table(head, rows)]
        parts += [_wrapped(note)] if note else []
    failed = failures(records)
    if failed:
        parts.append("\nFailed")
        told = [*failed, *hangs.waits(records), *diagnosis(records)]
        parts += [_wrapped(line, more="  ") for line in told]
    looked, *said = guarded(records)
    parts += ["", _wrapped(looked, first=""), *map(_wrapped, said)]
    parts.append(f"\nFindings: {len(findings) or 'none'}")
    parts += [_wrapped(f"[{f.kind}] {sentence(f)}", more="  ") for f in findings]
    parts += ["", _wrapped(modelled(records), first="")]
    return "\n".join(parts) + "\n"


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
        return [
            "The guard compared nothing: no step of a model in DDP or FSDP2 was taken."
        ]
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


def failures(records: list[Record]) -> list[str]:
    """Return a line for each error or exit code, with the ranks that ended by it."""
    who: dict[str, list[int]] = {}
    for record in records:
        told = describe_death(record["exit"], "") if record["exit"] else ""
        if record["error"]:
            error = record["error"]
            place = f"{short(error['line'])}: " if error["line"] else ""
            first = " ".join(error["text"].split())
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
