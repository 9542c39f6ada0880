"""CUDA graphs: a capture runs nothing, and each replay does what the ops would do."""

import pytest
import torch
from torch import nn

from allranks import vgpu

STEPS = 4
_OWN = torch.cuda.CUDAGraph  # of torch, since nothing is plugged in yet


@pytest.fixture(autouse=True)
def two():
    """Plug in two devices that are called cuda."""
    with vgpu.plugged_in(2, kind="cuda") as plugged:
        yield plugged


def build():
    """Return a net and an optimizer that may be captured, the same each time."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
    return net, torch.optim.Adam(net.parameters(), lr=1e-2, capturable=True)


def batches():
    """Return inputs and targets, on the host."""
    made = torch.Generator().manual_seed(5)
    return [torch.randn(2, 16, 8, generator=made) for _ in range(STEPS)]


def step(net, steps, x, y):
    """Train one step; return the loss."""
    steps.zero_grad(set_to_none=True)
    loss = (net(x) - y[:, :4]).square().mean()
    loss.backward()
    steps.step()
    return loss


def eager(net, steps):
    """Train op by op; return the losses."""
    return [step(net, steps, *pair.cuda()).item() for pair in batches()]


def weights(net):
    """Return the weights on the host."""
    return [p.detach().cpu() for p in net.parameters()]


def test_a_whole_step_in_a_graph_trains_as_without():
    """Losses and weights are the same to the last bit; the capture changes nothing."""
    net, steps = build()
    truth = eager(net, steps), weights(net)
    net, steps = build()
    first = [w.clone() for w in weights(net)]
    pair = torch.zeros(2, 16, 8, device="cuda")
    step(net, steps, *pair)  # a warm-up, which makes the optimizer's state
    with torch.no_grad():
        for param, value in zip(net.parameters(), first, strict=True):
            param.copy_(value)
        for state in steps.state.values():
            for tensor in state.values():
                tensor.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        loss = step(net, steps, *pair)
    assert all(map(torch.equal, weights(net), first))
    held, losses = torch.cuda.memory_allocated(), []
    for batch in batches():
        pair.copy_(batch)
        graph.replay()
        losses.append(loss.item())
    assert losses == truth[0] and all(map(torch.equal, weights(net), truth[1]))
    assert torch.cuda.memory_allocated() == held


def test_graphed_callables_train_as_without():
    """torch.cuda.make_graphed_callables is torch's own, on our graphs."""
    net, steps = build()
    truth = eager(net, steps), weights(net)
    net, steps = build()
    net = torch.cuda.make_graphed_callables(net, (torch.zeros(16, 8, device="cuda"),))
    assert eager(net, steps) == truth[0]
    assert all(map(torch.equal, weights(net), truth[1]))


def test_what_has_gone_lives_for_the_replay_only_and_a_view_of_it_is_filled():
    """A tensor that was let go is computed anew; what still shares memory is kept."""
    x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = (x + 1) * 2
        view = made[1:].view(3, 1)
        del made
    x.fill_(4)
    graph.replay()
    assert view.tolist() == [[10.0]] * 3


def test_each_replay_draws_anew(two):
    """The generator stands still in a capture and goes on at a replay."""
    x, graph = torch.ones(100, device="cuda"), torch.cuda.CUDAGraph()
    before = torch.cuda.get_rng_state()
    with torch.cuda.graph(graph):
        out = nn.functional.dropout(x)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    graph.replay()
    once = out.clone()
    two.clear()
    graph.replay()
    assert [event.op for event in two.events] == ["graph"]
    assert not torch.equal(out, once)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x.copy_(torch.zeros(3)),
        lambda x: torch.cuda.synchronize(),
    ],
)
def test_nothing_may_wait_in_a_capture(wait):
    """It ends with CUDA's error, and the capture with it."""
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    with (
        pytest.raises(torch.AcceleratorError, match="when stream is capturing"),
        torch.cuda.graph(graph),
    ):
        wait(x)
    assert not torch.cuda.is_current_stream_capturing()


def test_a_graph_without_a_capture_is_refused():
    """So is one capture inside another."""
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="without a preceding capture"):
        graph.replay()
    with torch.cuda.graph(graph), pytest.raises(RuntimeError, match="end that first"):
        torch.cuda.CUDAGraph().capture_begin()


def test_a_convolution_in_fp16_has_the_bits_of_its_capture():
    """The CPU's own kernel for fp16 would sum up in another order."""
    weight = torch.randn(32, 64, 3, 3, device="cuda").half()
    x = torch.randn(2, 64, 12, 12, device="cuda").half()
    truth = nn.functional.conv2d(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = nn.functional.conv2d(x, weight)
    graph.replay()
    assert out.equal(truth)


@pytest.mark.parametrize("name", ["get_graph_data", "raw_cuda_graph"])
def test_what_hands_out_cudas_own_graph_is_refused(name):
    """So is whatever else torch's class has and ours lacks, by its name."""
    with pytest.raises(NotImplementedError, match=rf"CUDAGraph\.{name} needs a real"):
        getattr(torch.cuda.CUDAGraph(), name)()
    public = {n for n in dir(_OWN) if not n.startswith("_")}
    assert public <= set(dir(torch.cuda.CUDAGraph))


def test_annotations_are_passed_over():
    """They are for CUDA's profiler, as on a GPU whose driver is too old for them."""
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, enable_annotations=True):
        out = x + 1
    x.fill_(4)
    graph.replay()
    assert out.tolist() == [5.0] * 3


def test_a_capture_may_end_in_halves(tmp_path):
    """As torch 2.15 ends its own, to look at a graph in between."""
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    graph.capture_begin()
    out = x + 1
    graph.capture_end_pre()
    assert not torch.cuda.is_current_stream_capturing()
    graph.debug_dump(str(tmp_path / "ops"), verbose=False)
    assert "aten.add" in (tmp_path / "ops").read_text("utf8")
    graph.capture_end_post()
    graph.replay()
    assert out.tolist() == [2.0] * 3
