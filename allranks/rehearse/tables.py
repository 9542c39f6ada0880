"""The tables of a report: who ran where, memory, traffic, copies and samples."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from allranks.base.report import name_ranks
from allranks.base.units import amount
from allranks.rehearse import fit, formulas
from allranks.rehearse.findings import Record
from allranks.rehearse.lines import short

MOST_LINES = 3  # of a GPU's memory
Section = tuple[str, list[str], list[list[str]], str]  # title, head, rows, note


def sections(records: list[Record]) -> Iterator[Section]:
    """Yield each table of the report: title, head, rows, and what to know about it."""
    yield _places(records)
    for make in (_memory, _memory_by_line, _fit, *TRAFFIC, _copies, _data):
        section = make(records)
        if section[2]:
            yield section


def _places(records: list[Record]) -> Section:
    rows = []
    for record in records:
        gpus = ", ".join(f"cuda:{g['physical']}" for g in record["gpus"]) or "none"
        rows.append(
            [
                _known(record["rank"]),
                record["host"],
                _known(record["local_rank"]),
                gpus,
                str(record["pid"]),
                str(record["steps"]),
                _end(record),
            ]
        )
    head = ["rank", "host", "local rank", "GPU", "pid", "steps", "end"]
    return "Who ran where", head, rows, ""


def _memory(records: list[Record]) -> Section:
    rows = []
    for record, gpu in _gpus(records):
        share = f"{gpu['peak'] / gpu['capacity']:.0%} of {amount(gpu['capacity'], 'B')}"
        holders = sorted(gpu["holders"].items(), key=lambda pair: -pair[1])
        held = ", ".join(f"{name} {amount(n, 'B')}" for name, n in holders)
        rows.append([*_place(record, gpu), amount(gpu["peak"], "B"), share, held])
    return "Memory at the peak", ["GPU", "rank", "peak", "used", "held by"], rows, ""


def _memory_by_line(records: list[Record]) -> Section:
    rows = []
    for record, gpu in _gpus(records):
        places = ", ".join(
            f"{short(line) or 'torch'} {amount(n, 'B')}"
            for line, n in gpu["lines"][:MOST_LINES]
        )
        rows.append([*_place(record, gpu), places])
    return "Lines that made most of it", ["GPU", "rank", "lines"], rows, ""


def _fit(records: list[Record]) -> Section:
    """Say which batch would fit, from what of the rehearsed one grows with it."""
    rows = []
    note = (
        "Extrapolated, not rehearsed: what has the batch as a dimension (activations, "
        "the batch itself) grows with it, and the rest stays. CUDA takes some memory "
        "for itself. Rehearse that batch, and it is measured."
    )
    for record, gpu in _gpus(records):
        found = fit.estimate(gpu["growth"], gpu["capacity"], record["steps"])
        if found is None:
            continue
        most = _rounded(max(found.most, 0) + found.bound)
        told = f"fewer than {most}" if found.bound else f"up to {most}"
        if found.most < 1:
            told = "none: what does not grow takes too much"
        grows = f"{amount(found.grown, 'B')} a sample"
        rows.append([*_place(record, gpu), str(found.batch), grows, told])
    if not any(record["epochs"] for record in records):
        note += (
            " No DataLoader tells the samples, so they are the rows of what the model "
            "was called with. What grows otherwise, as a graph's edges, is not in it."
        )
    if any("fewer" in row[-1] for row in rows):
        note += " Memory ran out before the peak, so rehearse a far smaller one first."
    head = ["GPU", "rank", "rehearsed", "grows by", "would fit, of one rank"]
    return "Which batch would still fit", head, rows, note


def _rounded(number: int) -> str:
    """Write a whole number with three digits that count, rounded down.

    >>> _rounded(97), _rounded(30_912_345)
    ('97', '30,900,000')
    """
    step = 10 ** max(len(str(number)) - 3, 0)
    return f"{number // step * step:,}"


def _gpus(records: list[Record]) -> Iterator[tuple[Record, dict[str, Any]]]:
    for record in records:
        for gpu in record["gpus"]:
            yield record, gpu


def _place(record: Record, gpu: dict[str, Any]) -> list[str]:
    return [f"{record['host']} cuda:{gpu['physical']}", _known(record["rank"])]


def _traffic(records: list[Record]) -> Section:
    """Sum up each rank's calls; equal rows of several ranks become one."""
    who: dict[tuple, list[int]] = {}
    for record in records:
        steps = record["steps"]
        for call in record["calls"]:
            steady = call["steps"] >= max(steps - 1, 2)
            often = f"{call['times'] / steps:.3g} a step" if steady else ""
            often = often or f"{call['times']} in all"
            name = call["op"] + (" (backward)" if call["in"] else "")
            key = (
                name,
                amount(call["bytes"], "B"),
                name_ranks(call["group"]),
                often,
                short(call["line"]),
            )
            who.setdefault(key, []).append(record["rank"] or 0)
    rows = [[*key, name_ranks(sorted(set(ranks)))] for key, ranks in who.items()]
    rows.sort(key=lambda row: "a step" not in row[3])  # first what matters most
    head = ["operation", "bytes", "group", "called", "line", "by"]
    return "Collectives and messages", head, rows, ""


def _buckets(records: list[Record]) -> Section:
    return "DDP's buckets", formulas.BUCKETS, formulas.buckets(records), ""


def _formulas(records: list[Record]) -> Section:
    title = "Traffic of the model, and by the formula"
    return title, formulas.HEAD, formulas.rows(records), formulas.NOTE


TRAFFIC = _traffic, _buckets, _formulas


def _copies(records: list[Record]) -> Section:
    found: Counter = Counter()
    for record in records:
        for copy in record["copies"]:
            way = f"{_side(copy['source'])} to {_side(copy['target'])}"
            key = way, short(copy["line"])
            found[(*key, "times")] += copy["times"]
            found[(*key, "bytes")] += copy["bytes"]
    keys = dict.fromkeys(key[:2] for key in found)
    rows = [
        [*key, str(found[(*key, "times")]), amount(found[(*key, "bytes")], "B")]
        for key in keys
    ]
    return (
        "Copies, all ranks",
        ["way", "line", "copies", "bytes"],
        rows,
        _per_step(records),
    )


def _per_step(records: list[Record]) -> str:
    """Say how many bytes go from the host to a GPU in a step, if all do the same."""
    found = set()
    for record in records:
        steps = max(record["steps"], 1)
        steady = [
            copy["bytes"]
            for copy in record["copies"]
            if copy["source"] == "cpu" and copy["steps"] >= max(steps - 1, 2)
        ]
        found.add(round(sum(steady) / steps))
    if len(found) != 1 or not (each := found.pop()):
        return ""
    return f"In a step, {amount(each, 'B')} go from the host to the GPU of each rank."


def _data(records: list[Record]) -> Section:
    who: dict[tuple, list[int]] = {}
    for record in records:
        passes: Counter = Counter()
        for epoch in record["epochs"]:
            num = len(epoch["indices"]) if epoch["whole"] else -1
            passes[epoch["loader"], epoch["line"], num, epoch["num_samples"]] += 1
        for (_, line, *numbers), times in passes.items():
            told = ["unknown" if n < 0 else str(n) for n in numbers]
            key = short(line), str(times), *told
            who.setdefault(key, []).append(record["rank"] or 0)
    rows = [[*key, name_ranks(sorted(set(ranks)))] for key, ranks in who.items()]
    return "Samples", ["loader", "passes", "read in each", "of", "by"], rows, ""


def _side(name: str) -> str:
    return "host" if name == "cpu" else "GPU"


def _end(record: Record) -> str:
    """Say how a process ended; one that was stopped stood somewhere."""
    if record["error"]:
        return "failed"
    if record["ended"]:
        return f"exit code {record['exit']}" if record["exit"] else "ended"
    how = "killed" if record["exit"] < 0 else "stopped"
    return f"{how} at {short(record['stands'])}" if record["stands"] else how


def _known(value: Any) -> str:
    return "-" if value is None else str(value)
