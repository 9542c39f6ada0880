"""The tables of a report: who ran where, memory, traffic, copies and samples."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from allranks.base.report import name_ranks
from allranks.base.units import amount
from allranks.rehearse.lines import short
from allranks.rehearse.memory import estimate_batch
from allranks.rehearse.records import Collective, Copy, Gpu, Record

STATE = "parameters", "gradients", "optimizer"  # what every training step holds
MOST_LINES = 3  # of a GPU's memory
SAME = 0.005  # relative difference of counted bytes from the formula's


class Table(NamedTuple):
    """A table with its title, and what to know about it."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""


def tables(records: list[Record]) -> Iterator[Table]:
    """Yield each table of the report that has rows."""
    first = (places, memory, memory_by_line, batches, traffic)
    if any(record.dry for record in records):  # one rank, and maybe very many others
        first = (kinds, memory_by_line, batches, traffic_by_axis)
    for make in (*first, buckets, formulas, copies, samples):
        table = make(records)
        if table.rows:
            yield table


def _merged(rows: Iterable[tuple[Record, tuple[str, ...]]]) -> list[list[str]]:
    """Return equal rows of several ranks as one, with the ranks in a last column."""
    ranks: dict[tuple[str, ...], set[int]] = {}
    for record, row in rows:
        ranks.setdefault(row, set()).add(record.rank or 0)
    return [[*row, name_ranks(sorted(who))] for row, who in ranks.items()]


def places(records: list[Record]) -> Table:
    """Say where each process ran, and how it ended."""
    rows = [
        [
            _known(record.rank),
            record.host,
            _known(record.local_rank),
            ", ".join(f"cuda:{gpu.physical}" for gpu in record.gpus) or "none",
            str(record.pid),
            str(record.num_steps),
            _end(record),
        ]
        for record in records
    ]
    head = ["rank", "host", "local rank", "GPU", "pid", "steps", "end"]
    return Table("Who ran where", head, rows)


def _known(value: Any) -> str:
    return "-" if value is None else str(value)


def _end(record: Record) -> str:
    """Say how a process ended; one that was stopped stood somewhere."""
    if record.error:
        return "failed"
    if record.ended:
        return f"exit code {record.exit_code}" if record.exit_code else "ended"
    how = "killed" if record.exit_code < 0 else "stopped"
    line = record.standing_line
    return f"{how} at {short(line)}" if line else how


def _gpus(records: list[Record]) -> Iterator[tuple[Record, Gpu, list[str]]]:
    """Yield each GPU that a process used, and the first two cells of its row."""
    for record in records:
        for gpu in record.gpus:
            # A dry run's host stands for many.
            name = f"{'' if record.dry else f'{record.host} '}cuda:{gpu.physical}"
            yield record, gpu, [name, _known(record.rank)]


def memory(records: list[Record]) -> Table:
    """Say who holds each GPU's memory at its peak."""
    rows = []
    for _, gpu, place in _gpus(records):
        capacity = amount(gpu.capacity_bytes, "B")
        share = f"{gpu.peak_bytes / gpu.capacity_bytes:.0%} of {capacity}"
        holders = sorted(gpu.holders.items(), key=lambda pair: -pair[1])
        held_by = ", ".join(f"{name} {amount(n, 'B')}" for name, n in holders)
        rows.append([*place, amount(gpu.peak_bytes, "B"), share, held_by])
    return Table("Memory at the peak", ["GPU", "rank", "peak", "used", "held by"], rows)


def kinds(records: list[Record]) -> Table:
    """Say what a rank's GPU holds after a step and at the peak, kind by kind."""
    rows = []
    for _, gpu, _ in _gpus(records):
        names = sorted(gpu.holders, key=lambda name: -gpu.holders[name])
        for name in dict.fromkeys([*STATE, *names]):
            held = (one.get(name, 0) for one in (gpu.state, gpu.holders))
            rows.append([name, *(amount(n, "B") if n else "-" for n in held)])
        after = sum(gpu.state.values())
        share = f"{gpu.peak_bytes / gpu.capacity_bytes:.0%}"
        of = f"{share} of {amount(gpu.capacity_bytes, 'B')}"
        both = amount(after, "B"), f"{amount(gpu.peak_bytes, 'B')}, {of}"
        rows.append(["together", *both])
    note = (
        "At the peak, parameters are a rank's own and those that are gathered then. "
        "What an op needs while it runs, and what CUDA takes, is not in it."
    )
    head = ["kind", "after a step", "at the peak"]
    return Table("Memory of a rank", head, rows, note)


def memory_by_line(records: list[Record]) -> Table:
    """Say which lines made what is there at the peak."""
    rows = []
    for _, gpu, place in _gpus(records):
        lines = ", ".join(
            f"{short(line) or 'torch'} {amount(n, 'B')}"
            for line, n in gpu.lines[:MOST_LINES]
        )
        rows.append([*place, lines])
    return Table("Lines that made most of it", ["GPU", "rank", "lines"], rows)


def batches(records: list[Record]) -> Table:
    """Say which batch would fit, from what of the rehearsed one grows with it."""
    rows = []
    note = (
        "This is extrapolated: tensors with a batch dimension (activations, the batch "
        "itself) grow with the batch, and all others stay. CUDA takes some memory for "
        "itself. To measure it, rehearse that batch."
    )
    for record, gpu, place in _gpus(records):
        estimate = estimate_batch(gpu.growth, gpu.capacity_bytes, record.num_steps)
        if estimate is None:
            continue
        # Where memory ran out, even the largest may not fit, so one more surely won't.
        most = _rounded(max(estimate.largest, 0) + estimate.lacked)
        verdict = f"fewer than {most}" if estimate.lacked else f"up to {most}"
        if estimate.largest < 1:
            verdict = "none: what does not grow takes too much"
        grows = f"{amount(estimate.sample_bytes, 'B')} a sample"
        rows.append([*place, str(estimate.rehearsed), grows, verdict])
    if not any(record.epochs for record in records):
        note += (
            " No DataLoader tells the samples, so they are the rows of what the model "
            "was called with. What grows otherwise, as a graph's edges, is not in it."
        )
    if any("fewer" in row[-1] for row in rows):
        note += " Memory ran out before the peak, so rehearse a far smaller one first."
    head = ["GPU", "rank", "rehearsed", "grows by", "largest batch per rank"]
    return Table("Which batch would still fit", head, rows, note)


def _rounded(number: int) -> str:
    """Write a whole number with three digits that count, rounded down.

    >>> _rounded(97), _rounded(30_912_345)
    ('97', '30,900,000')
    """
    step = 10 ** max(len(str(number)) - 3, 0)
    return f"{number // step * step:,}"


def is_steady(call: Collective, record: Record) -> bool:
    """Tell whether a call belongs to each step.

    With a first step that is unlike the others, one of them may lack it.
    """
    return call.num_steps >= max(record.num_steps - 1, 2)


def called(call: Collective, record: Record) -> str:
    """Say how often a call was made: in a step, or else in all."""
    if is_steady(call, record):
        return f"{call.times / record.num_steps:.3g} a step"
    return f"{call.times} in all"


def traffic(records: list[Record]) -> Table:
    """Sum up each rank's calls."""
    rows = []
    for record in records:
        for call in record.collectives:
            row = (
                call.op + (" (backward)" if call.in_backward else ""),
                amount(call.num_bytes, "B"),
                name_ranks(call.group),
                called(call, record),
                short(call.line),
            )
            rows.append((record, row))
    merged = _merged(rows)
    merged.sort(key=lambda row: "a step" not in row[3])  # first what matters most
    head = ["operation", "bytes", "group", "called", "line", "by"]
    return Table("Collectives and messages", head, merged)


def traffic_by_axis(records: list[Record]) -> Table:
    """Sum up a rank's calls, with the axis of the mesh whose ranks meet in each."""
    rows = []
    for record in records:
        for call in record.collectives:
            size = f"{len(call.group):,} ranks"
            whole = len(call.group) == record.world_size
            row = [
                call.op + (" (backward)" if call.in_backward else ""),
                amount(call.num_bytes, "B"),
                call.dtype,
                f"{call.axis}, {size}" if call.axis else f"{'all ' * whole}{size}",
                called(call, record),
                short(call.line),
            ]
            rows.append((is_steady(call, record) * call.times * call.num_bytes, row))
    rows.sort(key=lambda pair: -pair[0])  # first what weighs most in a step
    head = ["operation", "bytes", "dtype", "axis", "called", "line"]
    return Table("Collectives and messages", head, [row for _, row in rows])


def buckets(records: list[Record]) -> Table:
    """Return a row for each of DDP's buckets, in the order in which they are sent."""
    rows = []
    for record in records:
        for model in record.ddp:
            for number, bucket in enumerate(model.buckets, start=1):
                size, count = amount(bucket.num_bytes, "B"), str(bucket.num_parameters)
                row = str(number), size, count, bucket.first, bucket.last
                rows.append((record, row))
    head = ["bucket", "bytes", "parameters", "first", "last", "of ranks"]
    return Table("DDP's buckets", head, _merged(rows))


def formulas(records: list[Record]) -> Table:
    """Compare what each model in DDP or FSDP2 sends with what it has to send."""
    rows = [(record, row) for record in records for row in _formulas(record)]
    head = ["sends", "bytes of its parameters", "by the formula", "counted", "ranks"]
    note = (
        "Both are bytes of tensors for one backward pass. In a ring of W ranks, each "
        "sends 2(W-1)/W of an all_reduce's bytes, and half as much for an all_gather "
        "or a reduce_scatter."
    )
    title = "Traffic of the model, and by the formula"
    return Table(title, head, _merged(rows), note)


def _formulas(record: Record) -> Iterator[tuple[str, ...]]:
    """Yield what a rank's only model sends: in which op, by formula, and counted."""
    if len(record.ddp) + len(record.fsdp) != 1:
        return  # which call belongs to which model is not known
    if len({call.axis for call in record.collectives} - {""}) > 1:
        return  # the formulas are those of one axis
    for model in record.ddp:
        size = amount(model.num_bytes, "B")
        sent = record.sent_bytes("all_reduce", model.group)
        counted = _counted(sent, model.num_bytes, record)
        yield "DDP, all_reduce", size, size, counted
    for model in record.fsdp:
        size, again = amount(model.num_bytes, "B"), model.regathered_bytes
        sent = record.sent_bytes("all_gather", model.group, forward=True)
        # Backward gathers again what was resharded after forward: not the root.
        formula = size + (f" + {amount(again, 'B')} again" if again else "")
        counted = _counted(sent, model.num_bytes + again, record)
        yield "FSDP2, all_gather", size, formula, counted
        size = amount(model.trained_bytes, "B")
        sent = record.sent_bytes("reduce_scatter", model.group)
        counted = _counted(sent, model.trained_bytes, record)
        yield "FSDP2, reduce_scatter", size, size, counted


def _counted(sent: int, formula: int, record: Record) -> str:
    """Compare bytes with the formula; under no_sync, a step has what one pass would.

    Args:
        sent: bytes in all backward passes.
        formula: bytes in one of them.
        record: of the process, which counts passes and steps.
    """
    passes, steps = max(record.num_backwards, 1), record.num_steps
    counted = sent / passes
    ratio = counted / max(formula, 1)
    close = "the same" if abs(ratio - 1) < SAME else f"{ratio:.3g} times that"
    if steps and abs(ratio * passes / steps - 1) < SAME < abs(ratio - 1):
        close += f": once in a step, which has {passes / steps:.3g} passes"
    return f"{amount(counted, 'B')}, {close}"


def copies(records: list[Record]) -> Table:
    """Sum up copies by way and line, over all ranks."""
    groups: dict[tuple[str, str], list[Copy]] = {}
    for record in records:
        for copy in record.copies:
            way = f"{_side(copy.source)} to {_side(copy.target)}"
            groups.setdefault((way, short(copy.line)), []).append(copy)
    rows = []
    for key, group in groups.items():
        times = sum(copy.times for copy in group)
        rows.append([*key, str(times), amount(sum(c.total_bytes for c in group), "B")])
    head = ["way", "line", "copies", "bytes"]
    title = "Copies" if any(r.dry for r in records) else "Copies, all ranks"
    return Table(title, head, rows, _bytes_each_step(records))


def _side(device: str) -> str:
    return "host" if device == "cpu" else "GPU"


def _bytes_each_step(records: list[Record]) -> str:
    """Say how many bytes go from the host to a GPU in a step, if all do the same."""
    by_rank = set()
    for record in records:
        steps = max(record.num_steps, 1)
        steady = [
            copy.total_bytes
            for copy in record.copies
            if copy.source == "cpu" and copy.num_steps >= max(steps - 1, 2)
        ]
        by_rank.add(round(sum(steady) / steps))
    if len(by_rank) != 1 or not (each := by_rank.pop()):
        return ""
    return f"In a step, {amount(each, 'B')} go from the host to the GPU of each rank."


def samples(records: list[Record]) -> Table:
    """Say how many samples each pass over a loader has read; equal passes are one."""
    rows = []
    for record in records:
        passes: dict[tuple, int] = {}
        for epoch in record.epochs:
            read = str(len(epoch.indices)) if epoch.whole else "unknown"
            of = "unknown" if epoch.num_samples < 0 else str(epoch.num_samples)
            key = epoch.loader, epoch.line, read, of
            passes[key] = passes.get(key, 0) + 1
        for (_, line, read, of), times in passes.items():
            rows.append((record, (short(line), str(times), read, of)))
    head = ["loader", "passes", "read in each", "of", "by"]
    return Table("Samples", head, _merged(rows))
