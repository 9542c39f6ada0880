"""One training step on W ranks: what each rank holds, does, sends, and waits for.

All ranks do the same at the same time, so the facts are those of one rank. Times come
from a model of the machine; bytes are counted from the layers' shapes in float32.
"""

from collections.abc import Sequence
from typing import NamedTuple

from allranks.topics.buckets import sums as buckets
from allranks.topics.buckets.models import MODELS, Layer
from allranks.topics.data_parallel.sums import ring_bytes
from allranks.topics.memory.sums import Model, saved

KINDS = "weights", "optimizer state", "gradients", "buckets", "activations"
LAYOUTS = {"single": "One GPU", "ddp": "DDP"}


class Machine(NamedTuple):
    """What each rank has, per second.

    Attributes:
        flops: floating-point operations that it really does.
        memory_rate: bytes that it reads from or writes to its memory.
        bandwidth: bytes that a link carries.
        alpha: seconds that a message takes at least.
    """

    flops: float = 60e12
    memory_rate: float = 2e12
    bandwidth: float = 25e9
    alpha: float = 20e-6


class Shape(NamedTuple):
    """A GPT's sizes: width, heads, tokens of a sample, words of its vocabulary."""

    dim: int = 768
    heads: int = 12
    tokens: int = 1024
    words: int = 50257


MACHINE, GPT2 = Machine(), Shape()


class Span(NamedTuple):
    """A piece of a rank's time: what it is about, and from when to when, in s.

    ``kind`` is "forward", "backward", "step", "send" or "wait"; ``name`` is that of the
    layer, or of the bucket.
    """

    kind: str
    name: str
    start: float
    end: float


class Step(NamedTuple):
    """A step of one rank.

    Attributes:
        spans: in the order of their starts.
        moments: (time in s, bytes of each of ``KINDS``), after each change.
        sent: bytes to each rank, in the order of ranks, from rank 0.
    """

    spans: list[Span]
    moments: list[tuple[float, list[int]]]
    sent: list[float]

    @property
    def seconds(self) -> float:
        """Return how long it takes."""
        return max(span.end for span in self.spans)

    @property
    def waits(self) -> float:
        """Return the seconds in which the rank computes nothing."""
        return sum(s.end - s.start for s in self.spans if s.kind == "wait")

    @property
    def peak(self) -> tuple[float, list[int]]:
        """Return the moment at which it holds most."""
        return max(self.moments, key=lambda moment: sum(moment[1]))


def kept(layer: Layer, shape: Shape) -> int:
    """Return the bytes that a layer of a GPT keeps for backward, for each sample.

    A block keeps 16 vectors of the model's width for each token: the inputs of two
    norms, of qkv, of mix and of up (5), queries, keys and values (3), the hidden layer
    before and after gelu (8). A norm keeps mean and scale, and attention a sum per
    head. The output layer keeps the log-probabilities of all words, which is most.

    Source: the tests, which count the tensors that autograd saves.

    >>> kept(Layer("block 0", (1,), 0.0), Shape(8, 2, 1, 10))
    536
    """
    dim, heads, tokens, words = shape
    block = saved(Model("gpt", dim, 1, heads, heads, 4 * dim))
    numbers = {"block": sum(one.numbers for one in block)}
    numbers |= {"norm": 2 * dim + 2, "output": words}
    return 4 * tokens * numbers.get(layer.name.split()[0], 0)


def step(
    layout: str,
    world_size: int,
    batch_size: int,
    machine: Machine = MACHINE,
    layers: Sequence[Layer] = tuple(MODELS["gpt2"]),
    shape: Shape = GPT2,
) -> Step:
    """Lay out a training step with Adam.

    The gradients are freed before it (``set_to_none``), and the optimizer has made a
    step before, so that its state is there.

    Args:
        layout: a key of ``LAYOUTS``. On one GPU nothing is sent.
        world_size: ranks, in a ring.
        batch_size: samples of each rank.
    Raises:
        ValueError: if there is no such layout.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"no layout {layout}: there are {', '.join(LAYOUTS)}")
    shared = layout == "ddp" and world_size > 1
    link = (world_size if shared else 1), machine.alpha, machine.bandwidth
    timed = buckets.step(layers, batch_size, machine.flops, *link)
    num_params = sum(sum(layer.numbers) for layer in layers)
    spans, held = [], dict.fromkeys(KINDS, 0)
    held |= {"weights": 4 * num_params, "optimizer state": 8 * num_params}
    held["buckets"] = 4 * num_params if shared else 0
    moments, now = [(0.0, list(held.values()))], 0.0

    def change(kind: str, layer: Layer, end: float, activations: int) -> None:
        nonlocal now
        spans.append(Span(kind, layer.name, now, end))
        held["activations"] += activations
        held["gradients"] += 4 * sum(layer.numbers) if kind == "backward" else 0
        now = end
        moments.append((now, list(held.values())))

    for layer in layers:
        end = now + layer.mflop * 1e6 * batch_size / machine.flops
        change("forward", layer, end, batch_size * kept(layer, shape))
    for layer, timing in zip(reversed(layers), timed.layers, strict=True):
        change("backward", layer, timing[3], -batch_size * kept(layer, shape))
    if shared:
        spans += [
            Span("send", f"bucket {i}", bucket.start, bucket.end)
            for i, bucket in enumerate(timed.buckets)
        ]
    if shared and timed.total > now:
        spans.append(Span("wait", "the last buckets", now, timed.total))
        now = timed.total
    # Adam reads weight, gradient and two means of each parameter, and writes three.
    end = now + 7 * 4 * num_params / machine.memory_rate
    spans.append(Span("step", "Adam", now, end))
    moments.append((end, list(held.values())))
    sent = [0.0] * (world_size if shared else 1)
    if shared:
        sent[1] = ring_bytes(world_size, 4 * num_params)
    return Step(sorted(spans, key=lambda span: span.start), moments, sent)
