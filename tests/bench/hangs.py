"""Each tool on each hang of the clinic: what it finds, whom it names, how soon.

py-spy is not in the environment, so ``pip install py-spy==0.4.3`` before this part.
"""

from dataclasses import asdict

from allranks import hangs
from allranks.base.paths import ROOT
from allranks.hangs import tools
from allranks.hangs.measure import measure

DATA = ROOT / hangs.DATA


def run() -> dict:
    """Measure all pairs of hang and tool, at about a second each."""
    try:
        tools.find_py_spy()  # fail now rather than after three minutes
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from None
    results = {}
    for case in hangs.cases(ROOT):
        found = {key: asdict(measure(case, key)) for key in tools.TOOLS}
        results[case.slug] = found
        short = ", ".join(f"{key} {found[key]['verdict']}" for key in found)
        print(f"{case.slug}: {short}", flush=True)
    return results


def report(results: dict) -> str:
    """Return for each tool how many hangs it was tried on, and with which verdicts."""
    lines = []
    for key in tools.TOOLS:
        verdicts = [found[key]["verdict"] for found in results.values()]
        asked = [verdict for verdict in verdicts if verdict != "n/a"]
        counts = {v: asked.count(v) for v in ("names", "shows", "blames", "silent")}
        text = ", ".join(f"{counts[v]} {v}" for v in counts if counts[v])
        lines.append(f"{key}: {len(asked)} hangs: {text}")
    return "\n".join(lines)
