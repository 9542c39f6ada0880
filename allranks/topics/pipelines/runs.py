"""Run a real pipeline whose stages only sleep, and record who did what when.

A sleeping stage needs no core, so any number of them run side by side on any machine,
and what remains is the schedule itself. A busy stage multiplies matrices instead, which
takes as long if it has a core to itself.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

from allranks.topics.pipelines.schedules import NAMES, stages_of
from allranks.topics.pipelines.sums import Work


class _Pass(torch.autograd.Function):
    """Work in forward and in backward, and log both."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, stage: "Stage") -> torch.Tensor:
        ctx.stage, ctx.microbatch = stage, stage.count
        stage.count += 1
        stage.work("F", ctx.microbatch)
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.stage.back(ctx.microbatch)
        return grad * 1, None


class Stage(nn.Module):
    """A stage that takes a known time for each kind of work.

    Args:
        index: its number among all stages.
        seconds: by kind of work. With "W", a backward pass is "I", and "W" is done when
            torch asks for it; without, a backward pass is "B".
        spend: takes that many seconds.
        log: gets each piece of work.
    """

    def __init__(
        self,
        index: int,
        seconds: dict[str, float],
        spend: Callable[[float], None],
        log: list[Work],
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.index, self.seconds, self.log = index, seconds, log
        self.spend, self.count, self.last = spend, 0, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the time, or none when torch only asks for shapes (on meta)."""
        if x.device.type == "meta":
            return x * self.weight.to("meta")
        return _Pass.apply(x + self.weight, self)

    def work(self, kind: str, microbatch: int) -> None:
        """Spend the time of one pass, and log it."""
        start = time.perf_counter()
        self.spend(self.seconds[kind])
        end = time.perf_counter()
        place = dist.get_rank(), kind, microbatch, self.index
        self.log.append(Work(*place, start, end))

    def back(self, microbatch: int) -> None:
        """Do a backward pass, or the first part of it."""
        self.last = microbatch
        self.work("I" if "W" in self.seconds else "B", microbatch)

    def finish_later(self) -> Callable[[], None]:
        """Return the second part of the backward pass that has just been done."""
        return partial(self.work, "W", self.last)


def calibrate() -> Callable[[float], None]:
    """Return a function that computes what takes a given time when undisturbed.

    One rank at a time measures how fast it is. Later, each computes the amount that it
    found, however many compete for the cores.
    """
    torch.set_num_threads(1)
    a = torch.randn(96, 96)

    def compute(num: int) -> None:
        for _ in range(num):
            torch.mm(a, a)

    speed = 0.0
    for rank in range(dist.get_world_size()):
        if rank == dist.get_rank():
            for _ in range(6):  # the fastest is the least disturbed
                start = time.perf_counter()
                compute(400)
                speed = max(speed, 400 / (time.perf_counter() - start))
        dist.barrier()
    return lambda seconds: compute(round(seconds * speed))


def record(
    schedule: str,
    num_microbatches: int,
    stage_s: Sequence[float],
    busy: bool = False,
    steps: int = 1,
    backward: Sequence[float] = (1, 1),
) -> list[list[Work]]:
    """Run steps of a schedule of torch's on a live rank, and return this rank's work.

    Args:
        schedule: one of ``schedules.NAMES``, in upper or lower case; some need several
            stages per rank.
        num_microbatches: per step.
        stage_s: seconds of each stage's forward pass.
        busy: compute instead of sleeping.
        steps: how many to record.
        backward: how long the two parts of a backward pass take, in forward passes: the
            gradient of the input, and those of the weights. Only zero-bubble schedules
            split it.
    Returns:
        For each step a list of work, by the clock that the ranks of one machine share.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    kind, log = pipelining.schedules.get_schedule_class(schedule), []
    spend = calibrate() if busy else time.sleep
    name = {name.lower(): name for name in NAMES}[schedule.lower()]
    stages = []
    for i in stages_of(name, world_size, len(stage_s) // world_size)[rank]:
        first, second = (part * stage_s[i] for part in backward)
        seconds, options = {"F": stage_s[i], "B": first + second}, {}
        if name.endswith("ZeroBubble"):
            seconds = {"F": stage_s[i], "I": first, "W": second}
        part = Stage(i, seconds, spend, log)
        if "W" in seconds:
            options["dw_builder"] = part.finish_later
        place = i, len(stage_s), torch.device("cpu")
        stages.append(pipelining.PipelineStage(part, *place, **options))
    single = issubclass(kind, pipelining.schedules.PipelineScheduleSingle)
    pipe = kind(
        stages[0] if single else stages,
        num_microbatches,
        loss_fn=lambda output, target: (output - target).square().mean(),
    )
    x = torch.ones(num_microbatches, 1)
    found = []
    for step in range(steps + 1):  # in the first, torch finds out the shapes
        log.clear()
        for stage in stages:
            stage.submod.count = 0
        dist.barrier()
        pipe.step(*[x] if rank == 0 else [], target=x)
        if step:
            found.append(log[:])
    return found


def join(by_rank: Sequence[list[list[Work]]]) -> list[list[Work]]:
    """Join the ranks' logs step by step; the first work of a step begins at time 0."""
    steps = []
    for logs in zip(*by_rank, strict=True):
        works = sorted(
            (w for log in logs for w in log), key=lambda w: (w.start, w.rank)
        )
        begin = works[0].start
        steps.append(
            [w._replace(start=w.start - begin, end=w.end - begin) for w in works]
        )
    return steps


def orders(works: Sequence[Work]) -> list[list[str]]:
    """Return the order of the work on each rank, as ``sums`` writes it."""
    found = [[] for _ in range(1 + max(work.rank for work in works))]
    several = len({work.stage for work in works}) > len(found)
    for work in sorted(works, key=lambda work: work.start):
        text = f"{work.kind}{work.microbatch}"
        text += f"@{work.stage}" if several else ""
        found[work.rank].append(text)
    return found


def efficiency(works: Sequence[Work], stage_s: Sequence[float]) -> float:
    """Return the share of the ranks' time that the work itself should take.

    That is the nominal length of all passes, divided by the length of the step times
    the number of ranks.

    Args:
        works: of one step, in seconds.
        stage_s: seconds of each stage's forward pass; backward takes twice as long.
    """
    num_ranks = 1 + max(work.rank for work in works)
    needed = sum(stage_s[w.stage] * (1 if w.kind == "F" else 2) for w in works)
    length = max(w.end for w in works) - min(w.start for w in works)
    return needed / (num_ranks * length)
