"""Pipelines: the bubble, for stages that sleep or compute, and what a cut gains."""

from allranks import Ranks
from allranks.topics.pipelines import runs as pipelines
from allranks.topics.pipelines.picture import pack
from allranks.topics.pipelines.sums import balanced_cut, bubble, peak_held, step_time

FORWARD_S = 0.02  # a stage's forward pass; its backward pass takes twice as long
STEPS = 3
COUNTS = (1, 2, 4, 8, 16)
TITLES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved1f1b": "Interleaved 1F1B: two stages per rank, each half as long",
}
LAYERS = [1] * 11 + [4]  # costs: the head of a language model is a heavy layer


def record(*args) -> list:
    """Call ``pipelines.record`` on a live rank."""
    from allranks.topics.pipelines import runs as pipelines

    return pipelines.record(*args)


def measure(ranks, schedule: str, count: int, stage_s: list[float], busy=False):
    """Run STEPS steps; return the step of median efficiency, and that efficiency."""
    args = schedule, count, stage_s, busy, STEPS
    steps = pipelines.join(ranks.run(record, *args, timeout=120, quiet=True))
    steps.sort(key=lambda works: pipelines.efficiency(works, stage_s))
    works = steps[len(steps) // 2]
    return works, pipelines.efficiency(works, stage_s)


def run() -> dict:
    """Measure on two and on four ranks."""
    results = {"forward_ms": 1e3 * FORWARD_S, "steps": STEPS}
    for num in (2, 4):
        title = f"GPipe on {num} ranks: the share of the time that is work"
        found = results[f"stages_{num}"] = {"num_stages": num, "title": title}
        with Ranks(num) as ranks:
            for count in COUNTS:
                found[f"m{count}"] = {"law": 1 - bubble(num, count)} | {
                    name: measure(ranks, "gpipe", count, [FORWARD_S] * num, busy)[1]
                    for name, busy in (("sleep", False), ("busy", True))
                }
    with Ranks(4) as ranks:
        for name, title in TITLES.items():
            per_rank = 2 if name == "interleaved1f1b" else 1
            stage_s = [FORWARD_S / per_rank] * 4 * per_rank
            works, efficiency = measure(ranks, name, 8, stage_s)
            orders = pipelines.orders(works)
            results[name] = {
                "title": title,
                "forward_ms": 1e3 * FORWARD_S / per_rank,
                "efficiency": efficiency,
                "law": 1 - bubble(4 * per_rank, 8, per_rank),
                "held": peak_held(orders[0]),
                "ranks": {
                    f"rank_{rank}": ", ".join(pack(w) for w in works if w.rank == rank)
                    for rank in range(4)
                },
            }
        results["cut"] = {"layers": " ".join(map(str, LAYERS))}
        for name, sizes in (
            ("even", [3] * 4),
            ("best", balanced_cut(LAYERS, 4)),
        ):
            ends = [sum(sizes[: i + 1]) for i in range(4)]
            costs = [sum(LAYERS[e - n : e]) for e, n in zip(ends, sizes, strict=True)]
            works, _ = measure(ranks, "gpipe", 8, [FORWARD_S / 4 * c for c in costs])
            results["cut"][name] = {
                "sizes": " + ".join(map(str, sizes)),
                "slowest": max(costs),
                "step_ms": 1e3 * max(work.end for work in works),
                "predicted_ms": 1e3
                * 3  # a forward pass, and a backward pass twice as long
                * step_time([FORWARD_S / 4 * c for c in costs], 8),
            }
    cut = results["cut"]
    cut["gain"] = cut["even"]["step_ms"] / cut["best"]["step_ms"]
    cut["predicted"] = cut["even"]["predicted_ms"] / cut["best"]["predicted_ms"]
    return results


def report(results: dict) -> str:
    """Return a line for each number of micro-batches, each schedule, and the cut."""
    lines = []
    for num in (2, 4):
        for count in COUNTS:
            r = results[f"stages_{num}"][f"m{count}"]
            text = f"asleep {r['sleep']:.2f}, busy {r['busy']:.2f}, law {r['law']:.2f}"
            lines.append(f"S={num}, M={count}: {text}")
    for name in TITLES:
        r = results[name]
        text = f"{r['efficiency']:.2f}, law {r['law']:.2f}, rank 0 holds {r['held']}"
        lines.append(f"{name}, S=4, M=8: {text}")
    r = results["cut"]
    text = f"{r['gain']:.2f} times as fast as even; predicted {r['predicted']:.2f}"
    lines.append(f"cut {r['best']['sizes']}: {text}")
    return "\n".join(lines)
