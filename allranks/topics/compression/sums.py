"""What a step of data parallelism takes if ranks send less than their gradients.

The gradient is that of ``matrices`` square matrices of ``width`` × ``width`` float32
numbers, so that low-rank approximations have a size. A message costs α and a link
carries B, as in ``crossings``. All but local steps send while backward runs: each
bucket as soon as its gradients exist.
"""

import math
from typing import NamedTuple

from allranks.topics.crossings.sums import all_reduce

BUCKET = 25 * 2**20  # bytes of gradient in one bucket, DDP's default
BACKWARD = 2 / 3  # of the time that a step computes
# What encoding takes, compared with a search for the largest values: on one core a cast
# took less than a tenth of its time, and PowerSGD's thin matrix products about 0.4.
EFFORT = {"bf16": 0.1, "topk": 1.0, "powersgd": 0.4}

# How many steps teach as much as one without compression: what ch8's network on digits
# took to a loss of 0.2, with error feedback, on two ranks, as a mean over five seeds.
# Top-k's seeds differed most, 1.5 to 2.1: a mean of three of them was 1.5. It is known
# for one setting of each method, and for this network only.
LEARNS = {
    "none": ("", 0, 1.0),
    "bf16": ("", 0, 1.0),
    "topk": ("keep_percent", 1, 1.7),
    "powersgd": ("approx_rank", 2, 1.2),
    "local": ("inner_steps", 20, 1.1),
}


class Job(NamedTuple):
    """The model, the ranks and what the methods are set to."""

    world_size: int
    matrices: int
    width: int
    compute: float  # seconds of a step
    search: float  # bytes of gradient that top-k goes through per second
    overlap: bool  # whether gradients are sent during backward
    kept: int  # numbers that top-k keeps
    approx_rank: int
    inner_steps: int

    @property
    def numbers(self) -> int:
        """Return how many numbers the gradient has."""
        return self.matrices * self.width**2

    @property
    def buckets(self) -> int:
        """Return in how many buckets it leaves."""
        return math.ceil(4 * self.numbers / BUCKET)


class Way(NamedTuple):
    """What one method costs in a step; times in seconds.

    Attributes:
        handed: bytes that a rank hands to collectives.
        sent: bytes that it puts onto its link, for itself and for others.
        messages: that follow one another.
    """

    name: str
    handed: float
    sent: float
    messages: float
    encoding: float
    communication: float
    exposed: float  # of the communication: what no computing hides
    step: float


def waits(communication: float, backward: float, buckets: int) -> float:
    """Return how long ranks still send after backward, whose length is ``backward``.

    One bucket after the other gets its gradients, at equal distances, the last at
    backward's end. So the last is never hidden, however fast the link is, and the
    first leaves when backward has done its part of the work. All times in seconds.

    >>> waits(3.0, 100.0, 1), waits(3.0, 100.0, 3), waits(30.0, 10.0, 5)
    (3.0, 1.0, 22.0)
    """
    busy = communication - backward * (buckets - 1) / buckets  # the link never rests
    return max(communication / buckets, busy)


def ways(job: Job, alpha: float, bandwidth: float) -> list[Way]:
    """Return what each method costs: none, bf16, topk, powersgd and local.

    An all_reduce goes around a ring. Top-k cannot use one, since each rank keeps other
    places: all ranks gather all ranks' values and places, which go W − 1 hops. PowerSGD
    has two all_reduces, of r numbers for each row and for each column of a matrix, one
    after the other. Local steps reduce the weights once in a number of steps.

    Args:
        job: the model and the ranks.
        alpha: seconds per message.
        bandwidth: bytes per second and link.

    >>> job = Job(4, 1, 100, 0.1, 1e9, False, 100, 4, 10)
    >>> [(way.name, way.handed, way.sent) for way in ways(job, 0, 1)][:3]
    [('none', 40000, 60000.0), ('bf16', 20000, 30000.0), ('topk', 800, 2400)]
    """
    whole, others = 4 * job.numbers, job.world_size - 1
    ring, rounds = all_reduce(job.world_size)["ring"], job.buckets
    low_rank = 4 * job.approx_rank * 2 * job.width * job.matrices
    every = job.inner_steps
    plans = [  # name, handed, steps of messages, hops of each byte
        ("none", whole, ring.steps * rounds, ring.share),
        ("bf16", whole // 2, ring.steps * rounds, ring.share),
        ("topk", 8 * job.kept, others * rounds, others),
        ("powersgd", low_rank, 2 * ring.steps * rounds, ring.share),
        ("local", whole / every, ring.steps * rounds / every, ring.share),
    ]
    found = []
    for name, handed, messages, share in plans:
        sent = handed * share
        communication = messages * alpha + sent / bandwidth
        encoding = EFFORT.get(name, 0.0) * whole / job.search
        exposed = communication
        if job.overlap and name != "local":
            exposed = waits(communication, BACKWARD * job.compute, rounds)
        step = job.compute + encoding + exposed
        found.append(
            Way(name, handed, sent, messages, encoding, communication, exposed, step)
        )
    return found


def as_good(step: float, name: str, settings: dict[str, float]) -> float | None:
    """Return in how many seconds a way learns what a plain step teaches.

    Args:
        step: seconds of one step.
        name: of the method.
        settings: what the methods are set to, by the figure's names.
    Returns:
        None if nobody has measured this setting.

    >>> as_good(2.0, "bf16", {}), as_good(2.0, "topk", {"keep_percent": 50})
    (2.0, None)
    """
    setting, value, steps = LEARNS[name]
    return None if setting and settings[setting] != value else step * steps
