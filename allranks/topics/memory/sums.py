"""What a training step on one GPU holds over time, by kind, for GPT and Llama layers.

Counted are floating-point numbers: weights, gradients, the optimizer's state, what
autograd keeps for backward, and the largest tensors that live for a moment. Left out
are the batch itself, Adam's step counters, what kernels need inside, and what CUDA and
the allocator take for themselves. The tests compare all of it with torch.
"""

from collections.abc import Iterator
from typing import NamedTuple

from allranks.topics.buckets.models import Layer, gpt, llama

KINDS = (
    "weights",
    "master weights",
    "optimizer",
    "gradients",
    "activations",
    "logits",
    "temporary",
)
FAMILIES = {"gpt": "GPT", "llama": "Llama"}
CHECKPOINTING = {
    "none": "none",
    "attention": "each layer's attention",
    "layer": "each layer",
}
LOGIT = 4  # bytes: the loss is computed in float32, whatever the model's precision
# About what an H100 reaches: operations and bytes of its memory, per second. Only the
# lengths of a step's parts depend on them.
FLOPS, MEMORY_RATE = 400e12, 3e12


class Precision(NamedTuple):
    """Bytes of a number, of each kind: ``state`` is one number of an optimizer's."""

    label: str
    weight: int
    gradient: int
    master: int
    state: int
    activation: int


PRECISIONS = {
    "fp32": Precision("fp32", 4, 4, 0, 4, 4),
    "mixed": Precision("bf16, fp32 master", 2, 2, 4, 4, 2),
    "gradients": Precision("bf16, fp32 master, gradient", 2, 4, 4, 4, 2),
    "bf16": Precision("bf16 only", 2, 2, 0, 2, 2),
}


class Optimizer(NamedTuple):
    """Numbers per parameter: of its state, and for the moment of its step.

    ``block`` is 0, or the state has a byte for each number, and a float32 scale for
    each block of so many numbers.
    """

    label: str
    states: int
    temporary: int
    block: int = 0


OPTIMIZERS = {
    "sgd": Optimizer("SGD", 0, 0),
    "momentum": Optimizer("SGD with momentum", 1, 0),
    "adam": Optimizer("Adam", 2, 1),  # foreach, as on GPUs: the roots of all means
    "fused": Optimizer("Adam, fused", 2, 0),
    "adam8bit": Optimizer("8-bit Adam", 2, 0, 256),
}


class Model(NamedTuple):
    """A GPT as in ``scripts/tasks.py``, or a Llama.

    Attributes:
        family: a key of ``FAMILIES``. A Llama has no biases and positions, norms
            without a mean, and three matrices in its MLP in place of two.
        dim, layers, heads: width, number of layers, and of heads in each.
        kv_heads: of keys and values; a GPT has as many as heads.
        hidden: width inside of an MLP; a GPT's is four times ``dim``.
        tokens, words: of a sample, and of the vocabulary.
        tied: whether the head's weights are those of the embedding.
    """

    family: str = "gpt"
    dim: int = 768
    layers: int = 12
    heads: int = 12
    kv_heads: int = 12
    hidden: int = 3072
    tokens: int = 1024
    words: int = 50257
    tied: bool = True


MODELS = {
    "gpt2": ("GPT-2, 124 M", Model()),
    "gpt2xl": ("GPT-2 XL, 1.6 B", Model("gpt", 1600, 48, 25, 25, 6400)),
    "llama1b": (
        "Llama 3.2, 1.2 B",
        Model("llama", 2048, 16, 32, 8, 8192, 4096, 128256),
    ),
    "llama8b": (
        "Llama 3, 8 B",
        Model("llama", 4096, 32, 32, 8, 14336, 8192, 128256, False),
    ),
}


class Training(NamedTuple):
    """How a model is trained.

    Attributes:
        batch_size: samples at once.
        precision, optimizer, checkpointing: keys of the tables above.
        loss_chunks: parts in which head and loss go through the batch. More than one
            is a loss that computes the gradients of each part at once, in forward.
        release: whether each gradient is used and freed as soon as it is there.
    """

    batch_size: int = 8
    precision: str = "mixed"
    optimizer: str = "adam"
    checkpointing: str = "none"
    loss_chunks: int = 1
    release: bool = False


class Span(NamedTuple):
    """A part of a step, and the most that is held in it.

    Attributes:
        phase: "forward", "loss", "again" (a checkpoint's forward), "backward", "step".
        name: of the layer, of the loss, or of the optimizer.
        start, end: in s.
        held: bytes of each of ``KINDS``.
        blocks: how many blocks' activations are held, from the first on.
    """

    phase: str
    name: str
    start: float
    end: float
    held: list[float]
    blocks: int


class Saved(NamedTuple):
    """What a block keeps for backward: numbers per token, some always in float32."""

    part: str
    what: str
    numbers: int
    exact: bool = False


def layers(model: Model) -> list[Layer]:
    """Return a model's layers: embedding, blocks, norm, output.

    Raises:
        ValueError: if heads do not divide the width, or kv_heads the heads.
    """
    family, dim, count, heads, kv_heads, hidden, tokens, words, tied = model
    if dim % heads or heads % kv_heads:
        raise ValueError(
            f"heads is {heads}: it must divide dim, {dim}, and be a multiple of "
            f"kv_heads, {kv_heads}"
        )
    if family == "gpt":
        return gpt(dim, count, tokens, words, tied)
    kv_dim = dim // heads * kv_heads
    return llama(dim, count, kv_dim, hidden, tokens, words, tied)


def saved(model: Model) -> list[Saved]:
    """List what a block keeps for backward.

    A matrix product keeps its input; so do norms, activation functions and the product
    of two vectors. What two of them read is kept once. Attention keeps queries, keys,
    values, its output (which is the input of mix), and a sum for each head.

    Source: the tests, which look at the tensors that autograd saves.

    >>> sum(one.numbers for one in saved(Model()))
    12304
    """
    dim, hidden, heads = model.dim, model.hidden, model.heads
    kv, llama = dim // heads * model.kv_heads, model.family == "llama"
    scale = "the norm's scale" if llama else "the norm's mean and scale"
    # Inside of a Llama's MLP: gate, up, silu(gate), and the product; of a GPT's: before
    # and after gelu.
    stats, inner = (1, 4) if llama else (2, 2)
    return [
        Saved("attention", "the layer's input", dim),
        Saved("attention", scale, stats, exact=True),
        Saved("attention", "input of q, k and v", dim),
        Saved("attention", "queries, keys, values", dim + 2 * kv),
        Saved("attention", "a sum for each head", heads, exact=True),
        Saved("attention", "output of attention", dim),
        Saved("mlp", "input of the second norm", dim),
        Saved("mlp", f"{scale}, again", stats, exact=True),
        Saved("mlp", "input of the MLP", dim),
        Saved("mlp", f"{inner} vectors inside the MLP", inner * hidden),
    ]


def kept(model: Model, activation: int, checkpointing: str = "none") -> tuple[int, int]:
    """Return the bytes per token that a block keeps, and those in its own backward.

    The first are held from its forward on. A checkpoint runs forward again before
    backward, and the second are those that are there then.

    >>> kept(Model(), 4), kept(Model(), 4, "layer")
    ((49216, 49216), (3072, 49216))
    """
    again = {"none": (), "attention": ("attention",), "layer": ("attention", "mlp")}
    sizes = [
        (part, numbers * (4 if exact else activation))
        for part, _, numbers, exact in saved(model)
    ]
    least = sum(size for part, size in sizes if part not in again[checkpointing])
    if checkpointing == "none":
        return least, least
    least += sizes[0][1]  # of a checkpoint, its input is kept
    # Backward goes through the MLP first, before attention's forward runs again.
    most = sum(size for _, size in sizes) if checkpointing == "layer" else least
    return least, most


def per_parameter(training: Training) -> list[float]:
    """Return bytes per parameter: weight, master weight, optimizer, gradient.

    >>> sum(per_parameter(Training())), sum(per_parameter(Training(precision="bf16")))
    (16.0, 8.0)
    """
    size = PRECISIONS[training.precision]
    one = OPTIMIZERS[training.optimizer]
    state = 1 + 4 / one.block if one.block else size.state
    return [size.weight, size.master, float(one.states * state), size.gradient]


class Sizes(NamedTuple):
    """What follows from a model and its training: numbers, bytes, and seconds.

    Attributes:
        shared: numbers that embedding and head have in common.
        embedding, block, head: numbers that each has for itself.
        matrix: numbers of the embedding, and of the head.
        last: of a block's last matrix, and its bias: the first to have a gradient.
        vector, inner, out, logits: bytes of a vector of the model's width for each
            token, of one as wide as the MLP, and of the head's results, in the model's
            precision and in the loss's.
        ups: vectors whose gradients are made at once in the MLP.
        first, most: bytes of a block, as from ``kept``.
        top: of the last norm, and of its result.
        in_block, in_attention, in_head, in_loss, moves: seconds in forward.
        update: seconds of the optimizer's step, for a parameter.
    """

    shared: int
    embedding: int
    block: int
    head: int
    matrix: int
    last: int
    vector: int
    inner: int
    out: int
    logits: int
    ups: int
    first: int
    most: int
    top: int
    in_block: float
    in_attention: float
    in_head: float
    in_loss: float
    moves: float
    update: float


def sizes(model: Model, training: Training) -> Sizes:
    """Return what a step's layout needs."""
    embedding, block, *_, norm, output = layers(model)
    tokens = training.batch_size * model.tokens
    size = PRECISIONS[training.precision].activation
    llama, matrix = model.family == "llama", model.words * model.dim
    shared = matrix if model.tied else 0
    first, most = kept(model, size, training.checkpointing)
    vector, logits = size * model.dim * tokens, LOGIT * model.words * tokens
    weight, master, state, gradient = per_parameter(training)
    kv_dim = model.dim // model.heads * model.kv_heads
    # Two operations for each number of a matrix and each token.
    attention = 2 * tokens * (2 * model.dim + 2 * kv_dim) * model.dim
    return Sizes(
        shared,
        sum(embedding.numbers) - shared,
        sum(block.numbers),
        sum(norm.numbers) + sum(output.numbers),
        matrix,
        model.dim * (model.hidden + (0 if llama else 1)),
        vector,
        size * model.hidden * tokens,
        size * model.words * tokens,
        logits,
        2 if llama else 1,
        first * tokens,
        most * tokens,
        2 * vector + 4 * tokens * (1 if llama else 2),
        block.mflop * 1e6 * training.batch_size / FLOPS,
        attention / FLOPS,
        output.mflop * 1e6 * training.batch_size / FLOPS,
        3 * logits / MEMORY_RATE,
        2 * vector / MEMORY_RATE,
        (2 * (weight + master + state) + gradient) / MEMORY_RATE,
    )


def step(model: Model, training: Training) -> list[Span]:
    """Lay out a training step: its parts, and the most that is held in each.

    The optimizer has made a step before, so its state is there.
    """
    s = sizes(model, training)
    num_params = s.shared + s.embedding + model.layers * s.block + s.head
    weight, master, state, gradient = per_parameter(training)
    always = [num_params * size for size in (weight, master, state)]
    spans, now = [], 0.0
    for phase, name, took, gradients, *more, blocks in (
        *_forward(model, training, s),
        *_loss(model, training, s),
        *_backward(model, training, s),
        *_update(training, s, num_params),
    ):
        held = [*always, gradients * gradient, *more]
        spans.append(Span(phase, name, now, now + took, held, blocks))
        now += took
    return spans


# The four below yield phase, name, seconds, and what is held: numbers of gradients,
# bytes of activations, logits and what is temporary; and how many blocks' activations.


def _forward(model: Model, training: Training, s: Sizes) -> Iterator[tuple]:
    """Go through embedding and blocks; what one makes is the next one's to keep."""
    yield "forward", "embedding", s.moves, 0, 0, 0, s.vector, 0
    # At its end a block has its last product and the sum. In a checkpoint nothing is
    # kept, so what the MLP makes counts here, and what variables still hold: a GPT's
    # block has queries, keys, values and attention's output as its own.
    temporary = 2 * s.vector
    if training.checkpointing == "layer":
        variables = 2 if model.family == "llama" else 5
        temporary = variables * s.vector + (s.ups + 1) * s.inner
    for i in range(model.layers):
        held = 0, (i + 1) * s.first, 0, temporary
        yield "forward", f"block {i}", s.in_block, *held, i + 1


def _loss(model: Model, training: Training, s: Sizes) -> Iterator[tuple]:
    """Go through norm, head and loss, and back through them."""
    blocks, chunks = model.layers, training.loss_chunks
    held, update = blocks * s.first + s.top, 0.0
    if training.release and not s.shared:
        update = s.head * s.update
    if chunks > 1:
        # A chunk's logits, log-probabilities, and their gradient. Of all chunks, the
        # gradients of the head and of its input are kept.
        tokens = training.batch_size * model.tokens
        chunk = 3 * LOGIT * model.words * -(-tokens // chunks)
        took = 3 * s.in_head + 2 * s.in_loss
        yield "loss", "head and loss", took, s.matrix, held, 0, chunk + s.vector, blocks
        yield "backward", "head", s.moves + update, s.matrix, held, 0, s.vector, blocks
        return
    yield "forward", "head", s.in_head, 0, held, 0, s.out, blocks
    yield "loss", "loss", s.in_loss, 0, held, s.logits, s.logits, blocks
    # Two gradients: of the log-probabilities, which are kept, and of the logits.
    back = 0, held, s.logits, 2 * s.logits
    yield "loss", "loss, backward", s.in_loss, *back, blocks
    back = s.matrix, held, 0, s.out + s.vector
    yield "backward", "head", 2 * s.in_head + update, *back, blocks


def _backward(model: Model, training: Training, s: Sizes) -> Iterator[tuple]:
    """Go back through the blocks. Each has its peak in the MLP."""
    again, took = training.checkpointing, 2 * s.in_block
    took += s.in_attention if again == "attention" else 0
    took += s.block * s.update if training.release else 0
    for i in reversed(range(model.layers)):
        # A tied head's gradient waits for the embedding's.
        later = s.head + (model.layers - 1 - i) * s.block
        ready = s.shared + (0 if training.release else later)
        held = i * s.first + s.most
        if again == "layer":
            yield "again", f"block {i}", s.in_block, ready, held, 0, s.vector, i + 1
        more = held, 0, s.vector + s.ups * s.inner
        yield "backward", f"block {i}", took, ready + s.last, *more, i + 1
    later = s.head + model.layers * s.block
    ready = s.shared + (0 if training.release else later)
    took = s.moves + ((s.embedding + s.shared) * s.update if training.release else 0)
    # A tied gradient is the sum of two parts, and for a moment all three are there.
    temporary = s.vector + 2 * PRECISIONS[training.precision].gradient * s.shared
    yield "backward", "embedding", took, ready + s.embedding, 0, 0, temporary, 0


def _update(training: Training, s: Sizes, num_params: int) -> Iterator[tuple]:
    """Step with the optimizer, unless that has been done in backward."""
    optimizer = OPTIMIZERS[training.optimizer]
    size = PRECISIONS[training.precision].state
    if not training.release:
        temporary = optimizer.temporary * size * num_params
        held = num_params, 0, 0, temporary
        yield "step", optimizer.label, num_params * s.update, *held, 0


def peak(spans: list[Span]) -> int:
    """Return the number of the first part in which most is held."""
    totals = [sum(span.held) for span in spans]
    return totals.index(max(totals))
