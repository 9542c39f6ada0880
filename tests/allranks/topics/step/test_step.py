"""The wall chart's numbers: bytes as autograd and torch count them, times as laws."""

import itertools
import json
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

from allranks.topics.buckets.models import MODELS, Layer
from allranks.topics.step import picture, sums
from scripts.tasks import GPT

SIZES = [(32, 4, 2, 16, 2), (64, 2, 3, 24, 1), (96, 8, 1, 40, 3)]
WORDS = 256  # a byte's values


def layers_of(net: GPT, dim: int, tokens: int) -> list[Layer]:
    """List a GPT's layers as the chart does, with the parameters of the real ones."""

    def numbers(*parts) -> tuple[int, ...]:
        return tuple(p.numel() for part in parts for p in part.parameters())

    blocks = [Layer(f"block {i}", numbers(b), 1.0) for i, b in enumerate(net.blocks)]
    ends = Layer("norm", numbers(net.norm), 0.0), Layer("output", numbers(net.head), 1)
    first = Layer("embedding", numbers(net.bytes, net.positions), 0.0)
    return [first, *blocks, *ends]


def saved_bytes(net: nn.Module, run) -> int:
    """Count the float32 numbers' bytes that autograd keeps, apart from parameters."""
    own = {p.untyped_storage().data_ptr() for p in net.parameters()}
    seen, alive = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.dtype == torch.float32:
            seen[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = run()
    assert loss.requires_grad
    return sum(seen.values())


@pytest.mark.parametrize(("dim", "heads", "blocks", "tokens", "batch"), SIZES)
def test_activations_are_what_autograd_saves(dim, heads, blocks, tokens, batch):
    """To the byte, but for the loss's one number (the mean's weight)."""
    torch.manual_seed(0)
    net = GPT(dim, blocks, heads, tokens)
    x = torch.randint(0, WORDS, (batch, tokens))
    cross_entropy = nn.functional.cross_entropy
    real = saved_bytes(net, lambda: cross_entropy(net(x).flatten(0, 1), x.flatten()))
    shape = sums.Shape(dim, heads, tokens, WORDS)
    kept = [sums.kept(layer, shape) for layer in layers_of(net, dim, tokens)]
    assert batch * sum(kept) + 4 == real


def test_weights_gradients_and_state_are_what_torch_makes():
    """After a step with Adam, whose step counters are not counted."""
    net = GPT(32, 2, 4, 16)
    x = torch.randint(0, WORDS, (2, 16))
    optimizer = torch.optim.Adam(net.parameters())
    net(x).mean().backward()
    optimizer.step()
    means = [t for s in optimizer.state.values() for t in s.values() if t.dim()]
    real = [
        sum(t.nbytes for t in tensors)
        for tensors in (
            net.parameters(),
            means,
            [p.grad for p in net.parameters()],
        )
    ]
    layers, shape = layers_of(net, 32, 16), sums.Shape(32, 4, 16, WORDS)
    step = sums.step("single", 1, 2, layers=layers, shape=shape)
    assert [step.moments[-1][1][i] for i in range(3)] == real
    assert step.moments[-1][1][4] == 0  # backward has freed all activations


def test_gpt2_is_the_one_of_chapter_5():
    """124 million parameters; the vocabulary's log-probabilities are a quarter."""
    assert sum(sum(layer.numbers) for layer in MODELS["gpt2"]) == 124_439_808
    output = sums.kept(MODELS["gpt2"][-1], sums.GPT2)
    assert output == 4 * 1024 * 50257


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_a_rank_computes_sends_or_waits_and_nothing_overlaps(world_size):
    """Work and waiting fill the step; sending goes on beside them, inside the step."""
    step = sums.step("ddp", world_size, 4)
    work = sorted(s[2:] for s in step.spans if s.kind != "send")
    assert work[0][0] == 0 and work[-1][1] == step.seconds
    for (_, end), (start, _) in itertools.pairwise(work):
        assert start == pytest.approx(end)
    sends = [s for s in step.spans if s.kind == "send"]
    alone = sums.step("single", 1, 4)
    assert step.seconds - step.waits == pytest.approx(alone.seconds)
    assert bool(sends) == (world_size > 1) == bool(step.waits)
    if sends:
        assert max(s.end for s in sends) == pytest.approx(step.seconds - _adam(step))
        share = 2 * (world_size - 1) / world_size
        assert sum(step.sent) == pytest.approx(share * step.moments[0][1][0])


def _adam(step: sums.Step) -> float:
    (span,) = (s for s in step.spans if s.kind == "step")
    return span.end - span.start


def test_a_layout_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no layout fsdp: there are single, ddp"):
        sums.step("fsdp", 4, 4)


def test_the_charts_show_the_steps_own_numbers():
    """Heights of a tank are bytes, lengths in a lane seconds, and red is waiting."""
    for layout, used in ("single", 1), ("ddp", picture.WORLD_SIZE):
        found = sums.step(layout, picture.WORLD_SIZE, picture.BATCH_SIZE)
        text = picture.chart(layout, picture.WIDE, picture.longest())
        root = ET.fromstring(f"<svg>{text}</svg>")
        parts = [e for e in root.iter("rect") if e.get("data-kind") == "activations"]
        assert len(parts) == used
        high = float(parts[0].get("data-high"))
        shown = float(parts[0].get("height")) / high * picture.FULL
        assert shown == pytest.approx(found.peak[1][-1], rel=0.02)
        red = [e for e in root.iter("rect") if "--waiting" in e.get("style", "")]
        assert len(red) == used * (found.waits > 0)
        scale = picture.WIDE.lane_width / picture.longest()
        for one in red:
            assert float(one.get("width")) / scale == pytest.approx(found.waits, 0.02)


@pytest.mark.parametrize("room", [picture.WIDE, picture.PHONE], ids=["page", "phone"])
def test_what_is_stored_is_not_hatched_and_adam_stands_beside_its_block(room):
    """Only what travels is hatched: in the lanes and in the squares of who gets it."""
    text = picture.chart("ddp", room, picture.longest())
    root = ET.fromstring(f"<svg>{text}</svg>")
    boxes = [(e, e.get("style", "")) for e in root.iter("rect")]
    stored = [style for e, style in boxes if e.get("data-kind")]
    assert len(set(stored)) == len(sums.KINDS) * picture.WORLD_SIZE
    assert not any("url(#" in style for style in stored)
    assert any("url(#" in style for e, style in boxes if e.get("data-cell"))
    blocks = [
        (float(e.get("x")) + float(e.get("width")), float(e.get("y")))
        for e in root.iter("rect")
        if f"fill-opacity:{picture.WORK['step']}" in e.get("style", "")
        and not e.get("data-kind")
    ]
    turned = [g.get("transform") for g in root.iter("g") if g.find("text") is not None]
    names = [tuple(map(float, re.findall(r"[\d.]+", t)[:2])) for t in turned]
    assert len(blocks) == picture.WORLD_SIZE
    for (right, top), (x, y) in zip(blocks, names, strict=True):
        assert 3 < x - right < 8 and y == top


def test_a_tank_never_runs_over():
    """One scale holds for all layouts, on the page and on paper."""
    for layout in picture.LAYOUTS:
        found = sums.step(layout, picture.WORLD_SIZE, picture.BATCH_SIZE)
        assert sum(found.peak[1]) <= picture.FULL


def test_the_sheet_needs_nothing_of_the_page_and_nothing_leaves_it():
    """A printer knows no variables, and all words are inside of the paper."""
    sheet = picture.sheet()
    assert "var(" not in sheet and 'width="594mm" height="420mm"' in sheet
    root = ET.fromstring(sheet)
    tops = [float(y) for y in re.findall(r"translate\(70 (\d+)\)", sheet)]
    assert tops[-1] + picture.WORLD_SIZE * 128 + 70 < 1190
    name = "{http://www.w3.org/2000/svg}text"
    assert all(float(t.get("y")) < 1180 for t in root.iter(name))


def test_the_page_has_what_its_script_needs():
    html = picture.page_figure()
    data = json.loads(re.search('data-facts="([^"]*)"', html)[1].replace("&quot;", '"'))
    for layout, facts in data["layouts"].items():
        found = sums.step(layout, picture.WORLD_SIZE, picture.BATCH_SIZE)
        assert len(facts["moments"]) == len(found.moments)
        assert facts["moments"][-1][1] == found.moments[-1][1]
    assert html.count('role="img"') == 2 * len(data["layouts"])
