"""Who gets which sample: torch's DistributedSampler and DataLoader, batch by batch."""

from collections import Counter
from itertools import product, zip_longest
from typing import Any

import traitlets
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from allranks.base.picture import Picture, table
from allranks.base.units import whole
from allranks.live.ranks import Ranks
from allranks.topics.batches.sums import global_batch_size
from allranks.topics.kit.explorable import Explorable

BOUNDS = {  # of each number: what torch accepts, and what fits on a page
    "num_samples": (1, 200),
    "world_size": (1, 16),
    "batch_size": (1, 200),
    "epoch": (0, 99),
    "seed": (0, 2**32 - 1),
    "step": (0, 10**6),
}
SHOWN = 6  # samples in a sentence, steps in the picture


class Sampler(Explorable):
    """One epoch of a data set, divided among the ranks.

    Traits:
        num_samples: samples in the data set, numbered from 0.
        world_size: number of ranks.
        batch_size: samples per rank and step, as passed to DataLoader.
        shuffle: of DistributedSampler.
        drop_last: of DistributedSampler; leave samples out instead of repeating some.
        loader_drop_last: of DataLoader; leave out a batch that is not full.
        set_epoch: whether ``sampler.set_epoch(epoch)`` is called.
        epoch: the current epoch of the training.
        seed: of DistributedSampler.
        step: the step to look at; a number beyond the last step means the last.
    """

    name = "batches"

    num_samples = traitlets.Int(10).tag(sync=True)
    world_size = traitlets.Int(4).tag(sync=True)
    batch_size = traitlets.Int(2).tag(sync=True)
    shuffle = traitlets.Bool(True).tag(sync=True)
    drop_last = traitlets.Bool(False).tag(sync=True)
    loader_drop_last = traitlets.Bool(False).tag(sync=True)
    set_epoch = traitlets.Bool(True).tag(sync=True)
    epoch = traitlets.Int(0).tag(sync=True)
    seed = traitlets.Int(0).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    @staticmethod
    def compute(**state: Any) -> dict[str, Any]:
        """Ask torch's samplers of all ranks which samples they return, and when.

        ``batches[rank][step]`` is what a rank reads in a step. ``repeated`` lists the
        samples that are read more than once, and ``left_out`` those that no rank reads.
        ``orders`` are those of this epoch and of the next two.

        Raises:
            ValueError: if a number lies outside of its ``BOUNDS``.

        >>> state = Sampler(num_samples=5, world_size=2, shuffle=False).state
        >>> Sampler.compute(**state)["batches"]
        [[[0, 2], [4]], [[1, 3], [0]]]
        """
        for name, (low, most) in BOUNDS.items():
            if whole(name, state[name], low) > most:
                raise ValueError(f"{name} must be at most {most}, not {state[name]}")
        ranks, size = range(state["world_size"]), state["batch_size"]
        # A sampler that is never told the epoch shuffles as in epoch 0 for ever.
        told = state["epoch"] if state["set_epoch"] else 0
        samplers = [_sampler(state, rank, told) for rank in ranks]
        indices = [list(sampler) for sampler in samplers]
        drop = state["loader_drop_last"]
        batches = [list(BatchSampler(one, size, drop)) for one in indices]
        handed_out, everything = set().union(*indices), range(state["num_samples"])
        reads = Counter(i for rank in batches for batch in rank for i in batch)
        ahead = [told + i if state["set_epoch"] else 0 for i in range(3)]
        whole_order = {**state, "world_size": 1}  # as one rank reads it
        facts = {
            "share": len(samplers[0]),
            "steps": len(batches[0]),
            "step": max(0, min(state["step"], len(batches[0]) - 1)),
            "global_batch": global_batch_size(size, len(ranks)),
            "batches": batches,
            "repeated": [i for i in everything if reads[i] > 1],
            # A sample can get lost twice: the sampler hands it to no rank (drop_last),
            # or the loader drops the short last batch that it is in.
            "left_out": {
                "sampler": [i for i in everything if i not in handed_out],
                "loader": [i for i in everything if i in handed_out and not reads[i]],
            },
            "orders": [list(_sampler(whole_order, 0, epoch)) for epoch in ahead],
        }
        return {**facts, "summary": _summary(state, facts)}

    @staticmethod
    def picture(**state: Any) -> Picture:
        """Set a table of what each rank reads in each step."""
        facts = Sampler.compute(**state)
        steps = range(min(facts["steps"], SHOWN))
        rows = [["rank", *(f"step {step}" for step in steps)]]
        for rank, batches in enumerate(facts["batches"]):
            # A rank's k-th sample is number rank + k * W of all ranks together; from
            # number N on, the sampler repeats samples.
            first = -(-(state["num_samples"] - rank) // state["world_size"])
            rows.append([rank])
            for step in steps:
                places = enumerate(batches[step], step * state["batch_size"])
                words = (f"{i} (again)" if k >= first else f"{i}" for k, i in places)
                rows[-1].append(" ".join(words))
        if facts["steps"] > SHOWN:
            rows[0].append(f"{facts['steps'] - SHOWN} more")
            rows[1:] = [[*row, "…"] for row in rows[1:]]
        return table(rows[0], rows[1:])

    def measure(self) -> dict[str, Any]:
        """Let real ranks read all epochs, and compare what they read with the model."""
        state, expected = self.state, self.facts["batches"]
        if state["world_size"] > 8:
            raise ValueError("more than 8 processes are too many for this machine")
        with Ranks(state["world_size"]) as ranks:
            read = ranks.run(_read, state, quiet=True)
        number = sum(len(batch) for rank in read for batch in rank)
        summary = f"{_count(len(read), 'real rank')} read {_count(number, 'sample')} "
        summary += f"in {_count(len(read[0]), 'step')}: what the model says, in order."
        for rank, both in enumerate(zip(expected, read, strict=True)):
            for step, (a, b) in enumerate(zip_longest(*both, fillvalue="nothing")):
                if a != b:
                    summary = f"Step {step} of rank {rank}: {a} expected, {b} read."
        return {"batches": read, "equal": read == expected, "summary": summary}


def _sampler(state: dict, rank: int, epoch: int) -> DistributedSampler:
    """Return the sampler of a rank in an epoch."""
    options = {name: state[name] for name in ("shuffle", "seed", "drop_last")}
    data = range(state["num_samples"])
    sampler = DistributedSampler(data, state["world_size"], rank, **options)
    sampler.set_epoch(epoch)
    return sampler


def _read(state: dict) -> list[list[int]]:
    """Read data on a live rank as a script does; return the last epoch's batches."""
    data = range(state["num_samples"])
    options = {name: state[name] for name in ("shuffle", "seed", "drop_last")}
    sampler = DistributedSampler(data, **options)
    last = state["loader_drop_last"]
    loader = DataLoader(data, state["batch_size"], sampler=sampler, drop_last=last)
    for epoch in range(state["epoch"] + 1):
        if state["set_epoch"]:
            sampler.set_epoch(epoch)
        batches = [batch.tolist() for batch in loader]
    return batches


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _list(samples: list[int]) -> str:
    """Name the first few samples, and count the others."""
    more = f" and {len(samples) - SHOWN} more" if len(samples) > SHOWN else ""
    names = ", ".join(map(str, samples[:SHOWN]))
    return f"{_count(len(samples), 'sample').split()[1]} {names}{more}"


def _summary(state: dict, facts: dict) -> str:
    number, size = state["num_samples"], state["batch_size"]
    words = f"{_count(number, 'sample')} on {_count(state['world_size'], 'rank')}: "
    words += f"{facts['share']} for each."
    if facts["repeated"]:
        words += f" Read more than once: {_list(facts['repeated'])}."
    for who, samples in facts["left_out"].items():
        words += f" The {who} leaves out {_list(samples)}." if samples else ""
    if facts["steps"]:
        now = [len(rank[facts["step"]]) for rank in facts["batches"]]
        words += f" An epoch has {_count(facts['steps'], 'step')}."
        words += f" Step {facts['step']} reads {_count(sum(now), 'sample')}: "
        words += f"{now[0]} on each rank."
    else:
        words += f" No step: nobody fills a batch of {size}."
    if state["shuffle"] and state["epoch"] and not state["set_epoch"]:
        words += f" Epoch {state['epoch']} replays epoch 0: nobody called set_epoch."
    return words


def cases() -> list[dict]:
    """Return states, impossible ones too, in which Python and JavaScript must agree."""
    keys, flags = Sampler().state_names(), (True, False)
    sizes = (1, 1), (1, 4), (3, 8), (7, 3), (10, 4), (12, 4), (200, 16)
    options = product((1, 2, 5, 200), flags, flags, flags, flags)
    good = [
        (*size, *option, epoch, seed, step)
        for size, option in product(sizes, options)
        for epoch, seed, step in [(3, len(size) * option[0], 1), (99, 2**32 - 1, 99)]
    ]
    many = [(200, 2, 8, True, False, False, True, e, 7 * e, e) for e in range(100)]
    bad = [
        (*numbers, 2, True, False, False, True, *more)
        for numbers in [(0, 4), (201, 4), (10, 0), (10, 17), (10, 2)]
        for more in [(-1, 0, 0), (100, 0, 0), (0, -1, 0), (0, 2**32, 0), (0, 0, -1)]
    ]
    bad += [(10, 4, size, *[True] * 4, 0, 0, 0) for size in (0, -3, 201)]
    states = (*good, *many, *bad)
    return [dict(zip(keys, state, strict=True)) for state in states]
