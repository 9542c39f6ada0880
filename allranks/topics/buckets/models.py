"""Models as lists of layers: how many parameters each has, and how much it computes."""

import re
from typing import NamedTuple

MOST_LAYERS = 40
LAYER = re.compile(r"^ *([1-9][0-9]{0,8}) *: *([0-9]{1,9}(?:\.[0-9]{1,9})?) *$")


class Layer(NamedTuple):
    """A layer of a model.

    Args:
        name: shown in pictures.
        numbers: the size of each parameter, in the order of ``parameters()``.
        mflop: 10⁶ floating-point operations of its forward pass, per sample; backward
            takes twice as many.
    """

    name: str
    numbers: tuple[int, ...]
    mflop: float


def _linear(a: int, b: int, name: str, positions: int = 1, patch: int = 1) -> Layer:
    """Return a layer from a to b channels that is applied at each of the positions."""
    numbers = a * patch * b
    return Layer(name, (numbers, b), 2e-6 * numbers * positions)


def gpt(
    dim: int = 768,
    layers: int = 12,
    tokens: int = 1024,
    words: int = 50257,
    tied: bool = True,
) -> list[Layer]:
    """Return a GPT, without the arithmetic of attention's scores; at first, GPT-2.

    A tied output layer uses the embedding's weights, so their gradient is ready last;
    another one has weights and biases of its own.

    >>> sum(sum(layer.numbers) for layer in gpt(1600, 48))
    1557611200
    """
    d = dim
    shapes = [d, d, 3 * d * d, 3 * d, d * d, d, d, d, 4 * d * d, 4 * d, 4 * d * d, d]
    block = tuple(shapes), 2e-6 * 12 * d * d * tokens
    return [
        Layer("embedding", (words * d, tokens * d), 0.0),
        *(Layer(f"block {i}", *block) for i in range(layers)),
        Layer("norm", (d, d), 0.0),
        Layer("output", () if tied else (words * d, words), 2e-6 * words * d * tokens),
    ]


def llama(
    dim: int,
    layers: int,
    kv_dim: int,
    hidden: int,
    tokens: int,
    words: int,
    tied: bool = True,
) -> list[Layer]:
    """Return a Llama, likewise: no biases or positions, keys and values kv_dim wide.

    >>> sum(sum(layer.numbers) for layer in llama(2048, 16, 512, 8192, 4096, 128256))
    1235814400
    """
    d, kv = dim * dim, dim * kv_dim
    shapes = d, kv, kv, d, *[dim * hidden] * 3
    return [
        Layer("embedding", (words * dim,), 0.0),
        *(
            Layer(f"block {i}", (*shapes, dim, dim), 2e-6 * sum(shapes) * tokens)
            for i in range(layers)
        ),
        Layer("norm", (dim,), 0.0),
        Layer("output", () if tied else (words * dim,), 2e-6 * words * dim * tokens),
    ]


MODELS = {
    "digits": [  # the network of scripts/ch5_single.py: 8 x 8 pixels
        _linear(1, 64, "conv 1", positions=64, patch=9),
        _linear(64, 128, "conv 2", positions=64, patch=9),
        _linear(128, 64, "conv 3", positions=64, patch=9),
        _linear(1024, 10, "linear"),
    ],
    "mlp": [
        _linear(256, 4096, "in"),
        _linear(4096, 4096, "wide"),
        _linear(4096, 256, "narrow"),
        _linear(256, 10, "out"),
    ],
    "gpt2": gpt(),
}


def layers_of(model: str, text: str = "") -> list[Layer]:
    """Return a model's layers; those of "own" are read from ``text``.

    Args:
        model: a key of ``MODELS``, or "own".
        text: ``numbers:MFLOP`` of each layer, separated by commas.
    Raises:
        ValueError: if there is no such model, or no such layer.

    >>> layers_of("own", "1000:2, 50:0.1")[1]
    Layer(name='layer 1', numbers=(50,), mflop=0.1)
    """
    if model in MODELS:
        return MODELS[model]
    if model != "own":
        raise ValueError(f"no model {model}: there are {', '.join(MODELS)}, own")
    parts = text.split(",")
    if len(parts) > MOST_LAYERS:
        raise ValueError(f"{len(parts)} layers are too many: at most {MOST_LAYERS}")
    # In the order of forward; DDP fills its buckets from the last layer on.
    layers = []
    for i, part in enumerate(parts):
        if not (match := LAYER.fullmatch(part)):
            raise ValueError(
                f"'{part}' is no layer: write numbers:MFLOP, as 590000:1.2"
            )
        layers.append(Layer(f"layer {i}", (int(match[1]),), float(match[2])))
    return layers
