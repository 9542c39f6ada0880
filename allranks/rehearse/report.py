"""The report of a rehearsal: as text, as a page, and beside lines of a pull request.

The text is what a terminal shows. The page is one HTML file, which needs no network. A
program on GitHub's runners annotates a line by printing a *workflow command*:
https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from allranks.base.report import name_ranks
from allranks.base.units import amount
from allranks.rehearse.failures import explanations, failures
from allranks.rehearse.findings import Finding
from allranks.rehearse.lines import short
from allranks.rehearse.records import Record
from allranks.rehearse.tables import tables

WIDTH = 88  # columns of the text; what has no space in it may be longer
TIED = "\N{NO-BREAK SPACE}"
MOST_ROWS = 12  # of a table, unless everything is asked for
WHOLE_WORDS = {"break_long_words": False, "break_on_hyphens": False}
STYLE = """
:root{color-scheme:light dark;--ink:light-dark(#1c1c22,#e6e6ea);
--ground:light-dark(#fff,#17171b);--line:light-dark(#d9d9de,#3a3a42);
--accent:light-dark(#2639a0,#a9bbee);--bad:light-dark(#a54a01,#ed9e69)}
body{margin:0 auto;max-width:72rem;padding:1.5rem 1rem 3rem;color:var(--ink);
background:var(--ground);font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem}
th,td{text-align:left;vertical-align:top;padding:.3rem 1rem .3rem 0;
border-bottom:1px solid var(--line);white-space:nowrap}th{font-weight:600}
td:last-child{white-space:normal;min-width:12rem}
code{font-family:ui-monospace,monospace;color:var(--accent)}
li{margin:.4rem 0}.bad code,.failed{color:var(--bad)}.note{font-size:.9rem}
""".replace("\n", "")


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
    dry = records[0].dry
    name = "Dry run" if dry else "Rehearsal"
    head = [f"{name}: {ended or 'ended'}; {verdict(failed)}", listed(findings)]
    parts = [_wrapped(line, first="", more="  ") for line in head]
    brief = bool(failed) and not full
    parts.append(_wrapped(where_next(brief), first=""))
    if failed:
        sentences = [*failed, *explanations(records)]
        parts += ["\nFailed", *(_wrapped(line, more="  ") for line in sentences)]
    if findings:
        sentences = [f"[{f.kind}] {sentence(f)}" for f in findings]
        parts += ["\nFound", *(_wrapped(line, more="  ") for line in sentences)]
    looked, *remarks = supposed(records[0]) if dry else guarded(records)
    parts += ["", _wrapped(looked, first=""), *map(_wrapped, remarks)]
    # When something failed, its error should not scroll away under the tables.
    for table in [*tables(records)][: 1 if brief else None]:
        rows = table.rows if full else table.rows[:MOST_ROWS]
        parts += [f"\n{table.title}", _text_table(table.head, rows)]
        left = len(table.rows) - len(rows)
        parts += [f"  ... and {left} more, which --full shows"] if left else []
        parts += [_wrapped(table.note)] if table.note else []
    if not (brief or dry):
        parts += ["", _wrapped(modelled(records), first="")]
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
    lines = {f.kind: f.line for f in reversed(findings)}
    kinds = [k + (f" at {short(line)}" if line else "") for k, line in lines.items()]
    return f"Findings: {len(findings) or 'none'}" + (
        f" ({', '.join(reversed(kinds))})" if kinds else ""
    )


def where_next(brief: bool) -> str:
    """Say what follows, and how to see the rest."""
    if brief:
        return "Read on: what failed and was found follows; --full adds all tables."
    return "Read on: what was found follows, then the tables of all that was counted."


def sentence(finding: Finding) -> str:
    """Return what a finding says, with its line before it."""
    return finding.place + finding.text + ("" if finding.text.endswith("?") else ".")


def guarded(records: list[Record]) -> list[str]:
    """Say what ``allranks.guard`` looked at, what it remarks, and why it ended."""
    notes = [record.guard for record in records if record.guard]
    if not notes:
        return ["The guard was left out (--no-guard)."]
    models = sorted({model for each in notes for model in each.models})
    if not models:
        return [nothing_compared(records)]
    who = {r.rank or 0 for r in records if r.guard and r.guard.models}
    sentences = [
        f"The guard compared {name_ranks(who)} at steps 1, 2, 4, 8, ...: parameters, "
        "gradients, buffers, optimizers and settings of what "
        f"{' and '.join(models)} trains."
    ]
    # Ranks mostly say the same, which is told once.
    ended = dict.fromkeys(why for each in notes for why in each.ended)
    sentences += [f"It ended early: {why.rstrip('.')}." for why in ended]
    remarks = dict.fromkeys(remark for each in notes for remark in each.remarks)
    return sentences + [f"It remarks: {remark}" for remark in remarks]


def supposed(record: Record) -> list[str]:
    """Say what a dry run did, and which lines read numbers that it did not compute."""
    who = f"rank {record.rank or 0} of {record.world_size:,}"
    steps = f"{record.num_steps} step{'s' * (record.num_steps != 1)}"
    first = (
        f"One process was {who}, and took {steps} of the optimizer. The others are "
        "thought to do the same, and no large tensor was computed or sent."
    )
    told = [first]
    if not record.gpus:
        told.append(
            "The script put nothing on a GPU, so nothing was counted. Let it choose "
            "the device by torch.cuda.is_available() or torch.accelerator."
        )
    elif not (record.num_steps or record.error):
        told.append(
            "No optimizer took a step. Does a loader have a batch left for each of "
            f"{record.world_size:,} ranks?"
        )
    reads = record.unknown_reads.items()  # such as loss.item() in a log line
    if where := [f"{short(line)} ({n}x)" for line, n in reads]:
        told.append(
            f"Numbers that were not computed were read at {', '.join(where)}. They are "
            "made up, mostly 1, so what the script decides by them is not rehearsed."
        )
    return told


def nothing_compared(records: list[Record]) -> str:
    """Say why the guard had nothing to compare, and what was compared without it."""
    if any(r.num_scaler_steps > r.num_steps == 0 for r in records):
        return (
            "The guard compared nothing: GradScaler left out each step, because "
            "gradients overflowed 16 bits. Rehearse more steps, as it halves its scale "
            "each time, or begin with a smaller init_scale."
        )
    text = "The guard compared nothing: no step of a model in DDP or FSDP2 was taken."
    if any(r.unwrapped_sums and r.collectives for r in records):
        text += (
            " Sums of gradients and weights were compared before steps 1, 2, 4, 8, ..."
        )
    return text


def modelled(records: list[Record]) -> str:
    """Say how long the GPUs would be busy, and that it is an estimate."""
    seconds = max(record.modelled_s for record in records)
    return (
        f"By the declared costs of vgpu.Costs, the GPUs would be busy for "
        f"{amount(seconds, 's')}. This models no real GPU, so it does not predict how "
        "fast yours are. Overlap of streams is not rehearsed."
    )


def _text_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows in columns; the last one goes on below itself if it is long."""
    rows = [head, *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    left = sum(widths) + 2 * len(head)  # of the last column, in characters
    lines = []
    for *cells, last in rows:
        begun = "".join(f"  {c.ljust(w)}" for c, w in zip(cells, widths, strict=True))
        # Break between the items of a list alone, and not between number and unit.
        items = last.replace(" ", TIED).replace(f",{TIED}", ", ")
        wrapped = textwrap.wrap(items, max(WIDTH - left, 30), **WHOLE_WORDS) or [""]
        first, *more = (line.replace(TIED, " ") for line in wrapped)
        lines += [f"{begun}  {first}".rstrip(), *(" " * left + line for line in more)]
    return "\n".join(lines)


def _wrapped(text: str, first: str = "  ", more: str = "") -> str:
    """Return a paragraph in lines; ``more`` is before all but the first."""
    indents = {"initial_indent": first, "subsequent_indent": first + more}
    return textwrap.fill(text, WIDTH, **indents, **WHOLE_WORDS)


def html(records: list[Record], findings: Sequence[Finding], ended: str = "") -> str:
    """Return the page: findings first, then the tables of the report.

    Args:
        records: of all processes.
        findings: what the laws found.
        ended: how the run ended, in one sentence.
    """
    parts = ["<h1>Dress rehearsal</h1>", f"<p>{escape(ended)}</p>"]
    failed = failures(records)
    if failed:
        sentences = [*failed, *explanations(records)]
        items = "".join(f'<li class="failed">{escape(line)}</li>' for line in sentences)
        parts.append(f"<h2>Failed</h2><ul>{items}</ul>")
    parts.append(f"<h2>Findings: {len(findings) or 'none'}</h2>")
    items = "".join(
        f"<li><code>{finding.kind}</code> {escape(sentence(finding))}</li>"
        for finding in findings
    )
    parts += [f'<ul class="bad">{items}</ul>'] if items else []
    if records:  # there are none if the command never started
        dry = records[0].dry
        told = supposed(records[0]) if dry else guarded(records)
        parts += [f"<p>{escape(line)}</p>" for line in told]
        for title, head, rows, note in tables(records):
            parts.append(f"<h2>{escape(title)}</h2>{_html_table(head, rows)}")
            parts += [f'<p class="note">{escape(note)}</p>'] if note else []
        if not dry:
            parts.append(f'<p class="note">{escape(modelled(records))}</p>')
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Dress rehearsal</title><style>{STYLE}</style>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    # A table that is wider than a phone scrolls, and the keyboard can scroll it.
    open_tag = '<div class="scroll" tabindex="0" role="region" aria-label="table">'
    return f"{open_tag}<table><tr>{names}</tr>{lines}</table></div>"


def annotations(
    records: Sequence[Record], findings: Sequence[Finding], strict: bool
) -> Iterator[str]:
    """Yield a workflow command of GitHub for each failure and each finding.

    Args:
        records: of all processes.
        findings: what the laws found.
        strict: whether a finding is an error too, and not a warning.
    """
    errors = [record.error for record in records if record.error]
    # Ranks mostly fail alike, and a line is marked once.
    for kind, text, line in dict.fromkeys((e.type, e.text, e.line) for e in errors):
        yield _command("error", kind, text, line)
    for finding in findings:
        level = "error" if strict else "warning"
        yield _command(level, finding.kind, finding.text, finding.line)


def _command(level: str, title: str, text: str, line: str) -> str:
    file, _, number = line.rpartition(":")
    where = {"file": _in_repository(file), "line": number} if file else {}
    values = where | {"title": f"rehearsal: {title}"}
    parts = [f"{name}={_escape(value, ':,')}" for name, value in values.items()]
    return f"::{level} {','.join(parts)}::{_escape(text)}"


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
