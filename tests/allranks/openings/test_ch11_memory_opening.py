"""The mountain is as high as the figure's sums say, in each part of the step."""

import doctest
import re

import pytest

from allranks import openings
from allranks.openings import ch11_memory as opening
from allranks.topics.memory import sums


def outlines(narrow: bool) -> list[list[tuple[float, float]]]:
    """Return the corners of each layer of rock, from the ground up."""
    svg = openings.opening("ch11_memory", narrow)
    paths = re.findall(r'<path d="M([^"]*)Z" style="fill:var\(--rank-0', svg)
    return [
        [tuple(map(float, point.split())) for point in path.split("L")]
        for path in paths
    ]


def test_examples_in_docstrings_hold():
    result = doctest.testmod(opening)
    assert result.attempted == 3 and not result.failed


def test_the_peak_is_that_of_the_sums():
    """What lives for a moment in blocks is left out: a hundredth of the peak."""
    top = opening.STEP[sums.peak(opening.STEP)]
    assert (top.start, top.end) == opening.PEAK[:2]
    assert sum(opening.PEAK[2].values()) == pytest.approx(sum(top.held) / 1e9)
    for start, end, held in opening.STAIRS:
        inside = [s for s in opening.STEP if start <= s.start < end]
        most = max(sum(span.held) for span in inside) / 1e9
        assert sum(held.values()) == pytest.approx(most, rel=0.04)


@pytest.mark.parametrize("narrow", [False, True])
def test_each_layer_lies_on_the_one_below_and_the_top_is_the_peak(narrow):
    """The lowest stands on the ground; together they are as high as the plot."""
    layers = outlines(narrow)
    assert len(layers) == len(opening.KINDS)
    ground = opening.TOP + opening.HIGH
    assert max(y for _, y in layers[0]) == ground
    assert min(y for layer in layers for _, y in layer) == opening.TOP
    for kind, layer in zip(opening.KINDS, layers, strict=True):
        if kind in ("weights", "Adam"):  # always there, so a box
            low, high = max(y for _, y in layer), min(y for _, y in layer)
            scale = opening.HIGH / sum(opening.PEAK[2].values())
            assert low - high == pytest.approx(scale * opening.MOST[kind], abs=0.11)


def test_the_words_are_the_numbers():
    """Float32 and Adam: 4 bytes for a weight, 4 for its gradient, 8 for its state."""
    svg = openings.opening("ch11_memory")
    num_params = sum(sum(layer.numbers) for layer in sums.layers(opening.MODEL))
    for kind, size in {"weights": 4, "Adam": 8, "gradients": 4}.items():
        assert opening.MOST[kind] == pytest.approx(size * num_params / 1e9)
    for kind, digits in {"weights": 1, "Adam": 1, "gradients": 1}.items():
        assert f"{opening.MOST[kind]:.{digits}f} GB" in svg
    assert f"the peak: {sum(opening.PEAK[2].values()):.0f} GB" in svg
    assert f"up to {opening.MOST['activations']:.0f} GB" in svg
