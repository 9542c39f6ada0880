"""The mountain says where the peak is, whether it fits, and what lowers it."""

import itertools
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.topics import Mountain
from allranks.topics.memory import picture, sums
from allranks.topics.memory.figure import CHUNKS, PLACES


def changed(**state):
    """Return the facts of a figure in which several parts are changed at once."""
    x = Mountain()
    x.change(**state)
    return x.facts


def peak(facts) -> tuple[str, float]:
    """Return in which phase the peak is, and its bytes."""
    phase, _, _, _, held, _ = facts["spans"][facts["peak"]]
    return phase, sum(held)


def test_the_first_state_does_not_fit_and_each_remedy_makes_it():
    """The loss is the peak; both remedies together leave the optimizer's step."""
    first = changed()
    assert peak(first)[0] == "loss" and first["over"] > 5e9
    assert "11.6 GB too much for 80 GB" in first["summary"]
    for remedy in ({"loss_chunks": CHUNKS}, {"checkpointing": "layer"}):
        assert (
            changed(**remedy)["over"] == 0 and "it fits" in changed(**remedy)["summary"]
        )
    both = changed(loss_chunks=CHUNKS, checkpointing="layer")
    assert peak(both)[0] == "step"
    assert peak(both)[1] < peak(first)[1] / 3
    assert both["moment"] != both["peak"] == len(both["spans"]) - 1


def test_checkpoints_cost_a_third_of_the_arithmetic():
    """One more forward, of three; attention is less than a third of a block."""
    layer = changed(checkpointing="layer", loss_chunks=1)["longer"]
    assert 0.2 < layer < 1 / 3  # head, loss and optimizer do not run again
    assert 0 < changed(checkpointing="attention")["longer"] < layer / 3
    assert changed()["longer"] == 0


def test_the_moment_is_a_part_of_the_step_and_stays_inside():
    """A step of fewer parts has its last one in place of those that are gone."""
    assert changed(moment=10_000)["moment"] == len(changed()["spans"]) - 1
    words = changed(moment=3)["summary"]
    assert words.endswith("In forward, block 2: 24.3 GB.")
    assert "Block" not in changed(moment=19)["summary"]


@settings(max_examples=60, deadline=None)
@given(
    batch_size=st.integers(1, 64),
    layers=st.integers(1, 40),
    words=st.integers(1, 200_000),
    checkpointing=st.sampled_from([*sums.CHECKPOINTING]),
    loss_chunks=st.integers(1, 64),
    release=st.booleans(),
    precision=st.sampled_from([*sums.PRECISIONS]),
    family=st.sampled_from([*sums.FAMILIES]),
)
def test_what_holds_for_every_step(**state):
    """It begins and ends with the ground; parts follow each other; nothing is lost."""
    spans = [sums.Span(*span) for span in changed(**state)["spans"]]
    assert spans[0].start == 0 and all(span.end > span.start for span in spans)
    for before, after in itertools.pairwise(spans):
        assert after.start == before.end
        assert after.held[:3] == before.held[:3]
    assert spans[-1].held[4:6] == [0, 0] == spans[0].held[4:6]
    assert all(number >= 0 for span in spans for number in span.held)
    blocks = [span.blocks for span in spans]
    assert max(blocks) == state["layers"] and {span.phase for span in spans} <= {
        *PLACES,
        "again",
    }
    gradients = [span.held[3] for span in spans if span.phase == "step"]
    assert bool(gradients) != state["release"]
    most = max(span.held[3] for span in spans)
    assert state["release"] or gradients == [most]


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("batch_size", (2, 20, 200)),
        ("layers", (2, 20, 160)),
        ("tokens", (128, 4096, 32768)),
        ("words", (256, 50257, 262144)),
    ],
)
def test_more_of_anything_is_a_higher_peak(name, numbers):
    """Each number of the sentence moves the mountain."""
    peaks = [peak(changed(**{name: number}))[1] for number in numbers]
    assert peaks[0] < peaks[1] < peaks[2]


def test_the_picture_shows_the_bytes_and_black_on_yellow_is_what_does_not_fit():
    """Heights are bytes; with enough memory nothing is yellow; nothing is red."""
    x = Mountain()
    for gpu_gb, yellow in ((80.0, True), (100.0, False)):
        x.gpu_gb = gpu_gb
        html = x.picture(**x.state).html
        svg = html[html.index("<svg") : html.index("</svg>") + 6]
        root = ET.fromstring(svg)
        paths = [e for e in root.iter() if e.tag.endswith("path")]
        assert any("#ffe45c" in str(e.attrib) for e in paths) == yellow
        assert "--waiting" not in svg
        stacked = [e for e in paths if "fill-opacity" in e.get("style", "")]
        assert len(stacked) == len(sums.KINDS)
        tops = [float(y) for y in re.findall(r" ([\d.]+)", stacked[-1].get("d"))]
        room = max(peak(x.facts)[1], min(1e9 * gpu_gb, 1.5 * peak(x.facts)[1]))
        high = picture.TOP + picture.HIGH - min(tops)
        assert high / picture.HIGH * room == pytest.approx(peak(x.facts)[1], rel=0.01)
    assert "loss: loss, backward  91.6 GB" in x.picture(**x.state).text
