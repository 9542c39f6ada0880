"""What scripts for CUDA do beside training: profile, export, trace, load, seed."""

import io

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.profiler import ProfilerActivity

from allranks import vgpu
from allranks.vgpu import messages
from allranks.vgpu.cuda import tools


@pytest.fixture(autouse=True)
def two():
    """Plug in two devices that are called cuda."""
    with vgpu.plugged_in(2, kind="cuda") as plugged:
        yield plugged


@pytest.mark.parametrize(
    "activities",
    [[ProfilerActivity.CUDA], [ProfilerActivity.CPU, ProfilerActivity.CUDA]],
)
def test_a_profiler_of_cuda_profiles_the_host(activities, capfd):
    """It names the ops, its table can be sorted by CUDA's time, and it says nothing."""
    x = torch.ones(4, 4, device="cuda")
    with torch.profiler.profile(activities=activities) as found:
        x @ x
    assert "aten::mm" in found.key_averages().table(sort_by="cuda_time_total")
    assert "CUDA" not in capfd.readouterr().err


def test_an_old_profiler_of_cuda_profiles_the_host(capfd):
    """The one of torch.autograd, with use_device, does the same."""
    with torch.autograd.profiler.profile(use_device="cuda") as found:
        torch.ones(4, device="cuda").sum()
    assert "aten::sum" in found.key_averages().table()
    assert "CUDA" not in capfd.readouterr().err


def test_marks_for_nvidias_profiler_are_accepted():
    """There is none that would read them."""
    with torch.autograd.profiler.emit_nvtx(), torch.cuda.nvtx.range("step"):
        torch.ones(4, device="cuda").sum()


def test_functorch_differentiates_twice_on_a_gpu():
    """Forward over reverse mixes tensors that hide where they are."""
    x = torch.arange(1.0, 4.0, device="cuda")
    for twice in torch.func.hessian, lambda f: torch.func.jacfwd(torch.func.grad(f)):
        found = twice(lambda a: (a**3).sum())(x)
        assert found.is_cuda and torch.equal(found, torch.diag(6 * x))


@pytest.mark.parametrize("backend", SDPBackend.__members__.values())
def test_each_kernel_of_attention_gives_the_same(backend):
    """The CPU lacks some of a GPU's, which a script may insist on."""
    q = torch.randn(1, 2, 4, 8, device="cuda")
    truth = nn.functional.scaled_dot_product_attention(q, q, q)
    if backend not in (SDPBackend.ERROR, SDPBackend.OVERRIDEABLE):
        with sdpa_kernel(backend):
            out = nn.functional.scaled_dot_product_attention(q, q, q)
        torch.testing.assert_close(out, truth)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_attention_with_a_mask():
    """Its block mask and its gradients are on the GPU."""
    q = torch.randn(1, 2, 16, 8, device="cuda", requires_grad=True)

    def causal(batch, head, row, column):
        return row >= column

    mask = create_block_mask(causal, None, None, 16, 16, device="cuda")
    outs = [
        flex_attention(q, q, q, block_mask=mask),
        nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True),
    ]
    torch.testing.assert_close(*outs)
    torch.testing.assert_close(
        *[torch.autograd.grad(out.square().sum(), q)[0] for out in outs]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(1, device="cuda").to_sparse(),
        lambda: torch.sparse_coo_tensor([[0]], [1.0], (2,), device="cuda"),
        lambda: torch.nested.nested_tensor([torch.ones(1, device="cuda")]),
        lambda: torch.to_dlpack(torch.ones(1, device="cuda")),
        lambda: torch.utils.dlpack.to_dlpack(torch.ones(1, device="cuda")),
    ],
)
def test_other_layouts_are_refused_with_a_way_out(make):
    """On the host they are what they were."""
    with pytest.raises(NotImplementedError, match="rehears"):
        make()
    assert torch.sparse_coo_tensor([[0]], [1.0], (2,)).is_sparse


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_an_embeddings_sparse_gradients_are_dense_with_the_same_numbers(kind, capsys):
    """A recommender trains on; the CPU's own ones stay sparse."""
    messages.said.clear()
    ours, own = (kind(5, 2, sparse=True) for _ in range(2))
    ours.load_state_dict(own.state_dict())
    ours.cuda()
    rows = torch.tensor([[1, 3, 3]])
    for net, where in (ours, "cuda"), (own, "cpu"):
        net(rows.to(where)).square().sum().backward()
        torch.optim.SGD(net.parameters(), 0.1).step()
    assert own.weight.grad.is_sparse and not ours.weight.grad.is_sparse
    torch.testing.assert_close(ours.weight.cpu(), own.weight)
    assert capsys.readouterr().err.count("sparse=True is passed over") == 1


def test_export_is_refused_for_cuda_only(monkeypatch):
    """On a GPU a sentence comes in place of the process's end; the host's goes on."""
    monkeypatch.setattr(tools, "_own_export", lambda *args: "exported")
    net, x = nn.Linear(2, 1), torch.ones(1, 2)
    assert torch.export.export(net, (x,)) == "exported"
    with pytest.raises(
        NotImplementedError, match="FakeTensorMode with tensors on cuda"
    ):
        torch.export.draft_export(nn.Linear(2, 1).cuda(), (x.cuda(),))
    for module, inputs in ((net, x.cuda()), (nn.Linear(2, 1).cuda(), x)):
        with pytest.raises(NotImplementedError, match=r"export .* needs a real GPU"):
            torch.export.export(module, (inputs,))


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_a_module_can_be_traced():
    """torch.jit.trace checks its trace by calling it, on the device."""
    net, x = nn.Linear(2, 1).cuda(), torch.ones(1, 2, device="cuda")
    made = torch.jit.trace(net, x)(x)
    assert torch.equal(made, net(x)) and made.is_cuda


@pytest.mark.parametrize(
    ("place", "where"),
    [
        (lambda storage, tag: storage.cuda(0), "cuda:0"),
        (lambda storage, tag: storage.cuda(), "cuda:0"),
        (lambda storage, tag: storage, "cpu"),
        ({"cuda:1": "cuda:0"}, "cuda:0"),
        (None, "cuda:1"),
    ],
)
def test_a_function_says_where_a_file_is_loaded(place, where, two):
    """The tensor is there, is counted there, and is copied once."""
    file = io.BytesIO()
    torch.save(torch.arange(256.0, device="cuda:1"), file)
    file.seek(0)
    two.clear()
    loaded = torch.load(file, map_location=place)
    assert str(loaded.device) == where and loaded[255].item() == 255
    used = [torch.cuda.memory_allocated(index) for index in (0, 1)]
    assert used == [1024 * (where == "cuda:0"), 1024 * (where == "cuda:1")]


def test_a_random_seed():
    """torch.seed and torch.cuda.seed begin anew with numbers of their own."""
    seeds = set()
    for _ in range(2):
        torch.cuda.seed()
        seeds.add(torch.cuda.initial_seed())
        torch.seed()
        seeds.add(torch.cuda.initial_seed())
    assert len(seeds) == 4
