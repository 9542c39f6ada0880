"""Laws on samples: who reads what, in data-parallel training and evaluation."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

Record = dict[str, Any]
Epoch = dict[str, Any]
Row = list[Epoch]  # one epoch of one loader, on each rank


def rows(records: list[Record]) -> Iterator[Row]:
    """Yield each epoch that all ranks of a data-parallel job have of the same data."""
    ranks = [r for r in records if r["rank"] is not None]
    if len(ranks) < 2 or not all(r["data_parallel"] for r in ranks):
        return
    for row in zip(*(r["epochs"] for r in ranks), strict=False):
        same = len({(e["loader"], str(e.get("data")), e["num_samples"]) for e in row})
        known = all(e["whole"] and e["indices"] and e.get("data") for e in row)
        if same == 1 and known and row[0]["data"][0]:
            yield list(row)


def trains(row: Row) -> bool:
    """Tell whether the optimizer stepped while the epoch went on."""
    return all(e["last_step"] > e["first_step"] for e in row)


def repeats(row: Row) -> tuple[int, bool]:
    """Count readings beyond the first of each sample, and whether one rank has any."""
    counts: Counter = Counter()
    for epoch in row:
        counts.update(epoch["indices"])
    own = any(len(set(e["indices"])) < len(e["indices"]) for e in row)
    return sum(counts.values()) - len(counts), own


def twice(records: list[Record], gpus: int, nodes: int) -> Iterator[tuple[str, str]]:
    """In training, no sample is read by two ranks, but for what fills up shares."""
    for row in rows(records):
        again, own = repeats(row)
        if trains(row) and not own and again >= len(row):
            cure = "" if row[0]["distributed"] else " DistributedSampler is missing."
            yield (
                f"{again} of {sum(len(e['indices']) for e in row)} samples of an epoch "
                f"are read again by another rank.{cure} Give each rank a share",
                row[0]["line"],
            )
            return


def never(records: list[Record], gpus: int, nodes: int) -> Iterator[tuple[str, str]]:
    """A complete epoch of training reads every sample, unless it drops the last."""
    for row in rows(records):
        complete = all(e["finished"] and not e["drop_last"] for e in row)
        if not (trains(row) and complete) or repeats(row)[1]:
            continue
        seen = set().union(*(e["indices"] for e in row))
        lost = row[0]["num_samples"] - len(seen)
        if row[0]["distributed"] and lost > 0:
            yield (
                f"{lost} of {row[0]['num_samples']} samples are read by no rank in a "
                "complete epoch: do the sampler's num_replicas and rank match the job?",
                row[0]["line"],
            )
            return


def same_order(
    records: list[Record], gpus: int, nodes: int
) -> Iterator[tuple[str, str]]:
    """A shuffling DistributedSampler has another order in the next epoch."""
    for record in records:
        last: dict[int, Epoch] = {}
        for epoch in record["epochs"]:
            if not (epoch.get("shuffles") and trains([epoch])):
                continue  # a pass before training may have the order of epoch 0
            before = last.get(epoch["loader"])
            last[epoch["loader"]] = epoch
            told = before and len(set(epoch["indices"])) >= 8
            if told and before["indices"] == epoch["indices"]:
                yield (
                    "the sampler gives the same order in each epoch. Call "
                    "sampler.set_epoch(epoch) before the loop over the loader",
                    epoch["line"],
                )
                return


def padded(records: list[Record], gpus: int, nodes: int) -> Iterator[tuple[str, str]]:
    """In evaluation, no sample counts twice."""
    for row in rows(records):
        again, own = repeats(row)
        trained = any(e["last_step"] > e["first_step"] for e in row)
        if trained or own or not all(e["finished"] for e in row):
            continue  # a loop that was left may have been one of training
        if row[0]["distributed"] and again:
            yield (
                f"DistributedSampler fills up {row[0]['num_samples']} samples for "
                f"{len(row)} ranks, so {again} {'is' if again == 1 else 'are'} counted "
                "twice. Leave the repeats out of the sums, or give the ranks uneven "
                "shares",
                row[0]["line"],
            )
            return


LAWS = {
    "samples-twice": twice,
    "samples-never": never,
    "no-set-epoch": same_order,
    "padded-evaluation": padded,
}
