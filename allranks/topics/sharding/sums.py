"""What a rank holds and sends when weights, gradients and optimizer state are cut.

Ψ is the number of parameters, and W the number of ranks, in a ring. The four stages
cut more and more into W parts, of which each rank keeps one: DDP nothing, ZeRO-1 the
optimizer state, ZeRO-2 the gradients too, and ZeRO-3 (FSDP) also the weights. All
bytes are those of one rank and one step, activations and buffers left out.

Sources:
    Rajbhandari et al., ZeRO, 2020, https://arxiv.org/abs/1910.02054 (4Ψ + KΨ/W);
    Zhao et al., PyTorch FSDP, 2023, https://arxiv.org/abs/2304.11277 (hybrids).
"""

from typing import NamedTuple

from allranks.base.units import whole

STAGES = "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"
KINDS = "weights", "gradients", "optimizer state"
FORWARD, BACKWARD = 2, 4  # FLOPs per parameter and token; attention is left out


class Precision(NamedTuple):
    """Bytes per parameter.

    Attributes:
        weight: of a weight that computes and travels.
        grad: of a gradient that is added up.
        state: K, of all that the optimizer keeps, a copy of the weights included.
        kept: of a weight, and of a gradient, in a rank's own part; None if that is
            what computes. FSDP's ``MixedPrecisionPolicy`` keeps 4, and sends 2.
    """

    weight: int = 4
    grad: int = 4
    state: int = 8
    kept: int | None = None

    @property
    def own(self) -> tuple[int, int, int]:
        """Return the bytes of each of ``KINDS`` in a rank's own part."""
        return self.kept or self.weight, self.kept or self.grad, self.state


PRECISIONS = {
    "float32": Precision(),
    "bf16, float32 copy in the optimizer": Precision(2, 2, 12),
    "bf16, gradients and copy in float32": Precision(2, 4, 12),
    "bf16 alone": Precision(2, 2, 4),
}
FLOAT32, MIXED = [*PRECISIONS.values()][:2]
FSDP_MIXED = Precision(2, 2, 8, kept=4)  # cuts the float32 weights, gathers in bf16


def held(
    stage: int, num_params: float, shards: int, precision: Precision = FLOAT32
) -> tuple[float, float, float]:
    """Return the bytes of each of ``KINDS`` when gradients are there and no layer is.

    Args:
        stage: an index of ``STAGES``.
        num_params: Ψ.
        shards: the number of ranks among which a part is cut: W, or fewer in a hybrid.
        precision: the bytes of each number.

    >>> [sum(held(stage, 1e9, 64, MIXED)) / 1e9 for stage in range(4)]
    [16.0, 4.1875, 2.21875, 0.25]
    """
    _check(stage, shards)
    # ZeRO-1 cuts the last kind, ZeRO-2 the last two, ZeRO-3 all.
    return tuple(
        num_params * (precision.own[i] / shards if i >= 3 - stage else precision[i])
        for i in range(3)
    )


class Traffic(NamedTuple):
    """Bytes per parameter that a ring's collectives are called with, by phase.

    Attributes:
        forward, backward: can hide behind what is computed then.
        after: of the step's end, when there is nothing to hide behind.
    """

    forward: int
    backward: int
    after: int

    @property
    def total(self) -> int:
        """Return the bytes of all phases."""
        return sum(self)


def traffic(
    stage: int, precision: Precision = FLOAT32, reshard: bool = True
) -> Traffic:
    """Return what a stage sends per parameter, in units of (W − 1) / W.

    An all_reduce is a reduce_scatter and an all_gather, so it counts twice.

    Args:
        stage: an index of ``STAGES``.
        precision: the bytes of each number.
        reshard: ``reshard_after_forward``: whether a layer's weights are let go after
            forward, and gathered again for backward.

    >>> [traffic(stage).total for stage in range(4)], traffic(3, reshard=False).total
    ([8, 8, 8, 12], 8)
    """
    _check(stage, 1)
    weight, grad = precision.weight, precision.grad
    if stage == 0:
        return Traffic(0, 2 * grad, 0)
    if stage == 1:  # gradients stay whole until backward is over
        return Traffic(0, 0, grad + weight)
    if stage == 2:
        return Traffic(0, grad, weight)
    return Traffic(weight, grad + (weight if reshard else 0), 0)


def zero_redundancy_optimizer(precision: Precision = FLOAT32) -> Traffic:
    """Return what torch's ``ZeroRedundancyOptimizer`` sends under DDP, likewise.

    It is a ZeRO-1 that leaves DDP's all_reduce as it is, and then broadcasts each
    rank's part of the weights. So it sends as much as ZeRO-3, but holds the gradients
    of all layers.

    >>> zero_redundancy_optimizer().total
    12
    """
    return Traffic(0, 2 * precision.grad, precision.weight)


class Sent(NamedTuple):
    """Bytes that a rank sends: to ranks of its own group, and to other groups."""

    inside: float
    across: float


def sent(
    stage: int,
    num_params: float,
    shards: int,
    replicas: int = 1,
    precision: Precision = FLOAT32,
    reshard: bool = True,
) -> Sent:
    """Return the bytes that a rank sends in a step.

    With ``replicas`` it is a hybrid (HSDP): R groups of S ranks, where each group has
    all parts. Gradients are added up inside of a group, and then each part across.

    Args:
        shards: S, ranks of a group; without replicas, all.
        replicas: R, the number of groups.

    >>> sent(3, 1e9, 8), sent(3, 1e9, 4, replicas=2).across
    (Sent(inside=10500000000.0, across=0.0), 1000000000.0)
    """
    _check(stage, shards)
    whole("replicas", replicas, low=1)
    inside = traffic(stage, precision, reshard).total * (shards - 1) / shards
    across = 2 * precision.grad / shards * (replicas - 1) / replicas
    return Sent(num_params * inside, num_params * across)


def leaves_node(
    num_params: float,
    num_nodes: int,
    per_node: int,
    precision: Precision = FLOAT32,
    hybrid: bool = False,
    reshard: bool = True,
) -> float:
    """Return the bytes of ZeRO-3 that leave each node in a step.

    A ring through all ranks crosses from node to node once, and each crossing carries
    what a rank sends. In a hybrid with a group per node only the parts of gradients
    leave, as many as the node has ranks.

    >>> leaves_node(1e9, 2, 8) / 1e9, leaves_node(1e9, 2, 8, hybrid=True) / 1e9
    (11.25, 4.0)
    """
    ranks = whole("num_nodes", num_nodes, 1) * whole("per_node", per_node, 1)
    if num_nodes == 1:
        return 0.0
    if hybrid:
        return per_node * sent(3, num_params, per_node, num_nodes, precision).across
    return sent(3, num_params, ranks, 1, precision, reshard).inside


class Moment(NamedTuple):
    """What a rank has of each layer in a part of a step.

    Attributes:
        name: "start", "forward", "loss", "backward", "reduce", "step" or "end".
        layer: the one that computes, or -1.
        weights: a letter for each layer: "p" for a rank's part, "a" for the whole that
            is arriving, "w" for the whole.
        grads: likewise: "-" for none, "o" for a rank's own, "r" while they are added
            up, "s" for the sum (of which a rank may have a part).
    """

    name: str
    layer: int
    weights: str
    grads: str

    @property
    def waits(self) -> bool:
        """Return whether something is on its way while no layer computes."""
        return self.layer < 0 and ("a" in self.weights or "r" in self.grads)


def walk(stage: int, num_layers: int, reshard: bool = True) -> list[Moment]:
    """List the moments of a step in which, as in FSDP, the next layer arrives early.

    ZeRO-3's first layer comes at the start, and the last one again while the loss is
    computed. ZeRO-1 and 2 gather at the end what the optimizers of all ranks changed.

    >>> [moment.weights for moment in walk(3, 2)]
    ['ap', 'wa', 'pw', 'pa', 'aw', 'wp', 'pp', 'pp', 'pp']
    >>> [moment.grads for moment in walk(3, 2)]
    ['--', '--', '--', '--', '-o', 'or', 'rs', 'ss', '--']
    """
    _check(stage, 1)
    layers = range(whole("num_layers", num_layers, low=1))
    parts = [  # (name, layer that computes)
        ("start", -1),
        *(("forward", layer) for layer in layers),
        ("loss", -1),
        *(("backward", layer) for layer in reversed(layers)),
        *((name, -1) for name in ("reduce", "step", "end")),
    ]
    return [
        Moment(
            *part,
            _weights(stage, *part, num_layers, reshard),
            _grads(stage, *part, num_layers),
        )
        for part in parts
    ]


def _weights(stage: int, name: str, layer: int, num_layers: int, reshard: bool) -> str:
    """Say how much of each layer's weights is there."""
    if stage < 3:
        return num_layers * ("a" if stage and name == "end" else "w")
    # Of a layer that has run forward, and of one that backward needs next.
    past, soon = ("p", "a") if reshard else ("w", "w")
    after = num_layers - layer - 1
    match name:
        case "start":
            return "a" + (num_layers - 1) * "p"
        case "forward":
            return layer * past + "w" + (after > 0) * "a" + (after - 1) * "p"
        case "loss":
            return (num_layers - 1) * past + soon
        case "backward":
            return (layer - 1) * past + (layer > 0) * soon + "w" + after * "p"
    return num_layers * "p"


def _grads(stage: int, name: str, layer: int, num_layers: int) -> str:
    """Say what is there of each layer's gradients."""
    after = num_layers - layer - 1
    match name, stage:
        case "backward", 1:  # they stay until all are there
            return layer * "-" + "o" + after * "o"
        case "backward", _:  # those of the layer before are on their way
            return layer * "-" + "o" + (after > 0) * "r" + (after - 1) * "s"
        case "reduce", 1:
            return num_layers * "r"
        case "reduce", _:
            return "r" + (num_layers - 1) * "s"
        case "step", _:
            return num_layers * "s"
    return num_layers * "-"


def memory(
    moment: Moment,
    stage: int,
    num_params: float,
    shards: int,
    precision: Precision = FLOAT32,
) -> tuple[float, float, float]:
    """Return the bytes of each of ``KINDS`` in a moment; all layers are equal.

    Weights that ZeRO-3 gathers lie beside the rank's own part, and a sum beside the
    gradients that it is made of, as in FSDP2.

    >>> memory(walk(3, 4)[2], 3, 1e9, 4)
    (3000000000.0, 0.0, 2000000000.0)
    """
    each = num_params / len(moment.weights)
    weight, grad, state = (num / shards for num in precision.own)
    whole_weight, own_grad = precision.weight, precision.grad
    if stage == 3:
        whole_weight += weight
    # An all_reduce writes over what it adds up.
    added = own_grad + grad if stage else own_grad
    grads = {"-": 0, "o": own_grad, "r": added, "s": grad if stage else own_grad}
    return (
        each * sum(weight if one == "p" else whole_weight for one in moment.weights),
        each * sum(grads[one] for one in moment.grads),
        num_params * (state if stage else precision.state),
    )


def moves(
    moment: Moment,
    stage: int,
    num_params: float,
    shards: int,
    precision: Precision = FLOAT32,
) -> float:
    """Return the bytes that a rank sends in a moment; all layers are equal.

    >>> sum(moves(moment, 3, 1e9, 4) for moment in walk(3, 8)) / 1e9
    9.0
    """
    each = num_params / len(moment.weights) * (shards - 1) / shards
    reduced = precision.grad * (1 if stage else 2)
    arrive, leave = moment.weights.count("a"), moment.grads.count("r")
    return each * (arrive * precision.weight + leave * reduced)


def peak(
    stage: int,
    num_params: float,
    num_layers: int,
    shards: int,
    precision: Precision = FLOAT32,
    reshard: bool = True,
) -> float:
    """Return the most bytes that a rank holds in a step: ``held``, and whole layers.

    >>> [peak(stage, 8e9, 32, 8, MIXED) / 1e9 for stage in range(4)]
    [128.0, 46.0, 30.9375, 17.875]
    """
    moments = walk(stage, num_layers, reshard)
    given = stage, num_params, shards, precision
    return max(sum(memory(moment, *given)) for moment in moments)


def first_that_fits(
    limit: float,
    num_params: float,
    num_layers: int,
    shards: int,
    precision: Precision = FLOAT32,
) -> int | None:
    """Return the first stage whose peak is at most ``limit`` bytes; None if none is.

    Args:
        limit: of a GPU's memory, what activations and buffers leave.

    >>> [first_that_fits(60e9, 8e9, 32, shards, MIXED) for shards in (1, 2, 8)]
    [None, None, 1]
    """
    for stage in range(len(STAGES)):
        if peak(stage, num_params, num_layers, shards, precision) <= limit:
            return stage
    return None


def tokens_to_hide(
    stage: int,
    flops: float,
    bandwidth: float,
    shards: int,
    precision: Precision = MIXED,
    reshard: bool = True,
    recompute: bool = False,
    replicas: int = 1,
    across: float = 0.0,
) -> float:
    """Return from how many tokens per rank on forward and backward hide their traffic.

    Computing takes 2ΨT / F s forward and 4ΨT / F backward, and a phase that sends bΨ
    bytes takes bΨ / B (W − 1) / W. Ψ cancels: with numbers of 2 bytes, ZeRO-3 needs
    T ≥ F / B (W − 1) / W, and DDP needs the same. What is sent after backward stays
    in sight for any T.

    Args:
        flops: F, of a rank's device, per second: what it really reaches.
        bandwidth: B, bytes per second: the bus bandwidth of the ranks' collectives.
        recompute: whether backward computes the forward pass again (checkpointing).
        replicas: R of a hybrid, as in ``sent``; its two kinds of traffic overlap.
        across: bytes per second of a rank's own link to other groups.
    Source:
        https://github.com/jax-ml/scaling-book/blob/1a55377/gpus.md (data parallelism).

    >>> [round(tokens_to_hide(stage, 400e12, 400e9, 1000)) for stage in (0, 3)]
    [999, 999]
    """
    sends, share = traffic(stage, precision, reshard), (shards - 1) / shards / bandwidth
    computes = FORWARD, BACKWARD + (FORWARD if recompute else 0)
    # In each phase, b / B (W - 1) / W <= n T / F, so T >= b / n (W - 1) / W F / B.
    phases = [sends.forward * share / computes[0], sends.backward * share / computes[1]]
    if replicas > 1:
        added = sent(stage, 1, shards, replicas, precision).across
        phases.append(added / across / computes[1])
    return max(phases) * flops


def seconds(
    stage: int,
    num_params: float,
    tokens: float,
    flops: float,
    bandwidth: float,
    shards: int,
    precision: Precision = MIXED,
    reshard: bool = True,
) -> tuple[float, float]:
    """Return how long a step computes, and how long it then still waits for the link.

    Args:
        tokens: T, of each rank.

    >>> seconds(3, 1e9, 100, 400e12, 400e9, 2), seconds(2, 1e9, 1000, 400e12, 400e9, 2)
    ((0.0015, 0.006), (0.015, 0.0025))
    """
    sends = traffic(stage, precision, reshard)
    per_byte = num_params * (shards - 1) / shards / bandwidth
    computes = [num * num_params * tokens / flops for num in (FORWARD, BACKWARD, 0)]
    waits = (  # a phase ends when both its work and its traffic are done
        max(0.0, num * per_byte - busy)
        for num, busy in zip(sends, computes, strict=True)
    )
    return sum(computes), sum(waits)


def _check(stage: int, shards: int) -> None:
    """Refuse a stage that there is not, and a group without ranks."""
    if whole("stage", stage, low=0) >= len(STAGES):
        raise ValueError(f"stage must be at most {len(STAGES) - 1}, not {stage}")
    whole("shards", shards, low=1)
