"""The report as one HTML file, which needs no network."""

from collections.abc import Sequence
from html import escape

from allranks.rehearse import hangs, report
from allranks.rehearse.findings import Finding, Record
from allranks.rehearse.tables import sections

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


def html(records: list[Record], found: Sequence[Finding], ended: str = "") -> str:
    """Return the page: findings first, then the tables of the report.

    Args:
        records: of all processes.
        found: what the laws found.
        ended: how the run ended, in one sentence.
    """
    parts = ["<h1>Dress rehearsal</h1>", f"<p>{escape(ended)}</p>"]
    failed = report.failures(records)
    if failed:
        lines = [*failed, *hangs.waits(records), *report.diagnosis(records)]
        parts.append("<h2>Failed</h2><ul>")
        parts += [f'<li class="failed">{escape(line)}</li>' for line in lines]
        parts.append("</ul>")
    parts.append(f"<h2>Findings: {len(found) or 'none'}</h2>")
    items = "".join(_item(finding) for finding in found)
    parts += [f'<ul class="bad">{items}</ul>'] if items else []
    if records:
        said = [f"<p>{escape(line)}</p>" for line in report.guarded(records)]
        parts += said
        for title, head, rows, note in sections(records):
            parts.append(f"<h2>{escape(title)}</h2>{_table(head, rows)}")
            parts += [f'<p class="note">{escape(note)}</p>'] if note else []
        parts.append(f'<p class="note">{escape(report.modelled(records))}</p>')
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Dress rehearsal</title><style>{STYLE}</style>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _item(finding: Finding) -> str:
    return f"<li><code>{finding.kind}</code> {escape(report.sentence(finding))}</li>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    # A table that is wider than a phone scrolls, and the keyboard can scroll it.
    open_tag = '<div class="scroll" tabindex="0" role="region" aria-label="table">'
    return f"{open_tag}<table><tr>{names}</tr>{lines}</table></div>"
