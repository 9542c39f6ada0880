"""Virtual GPUs that answer to cuda: what a script asks torch.cuda, it is told."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from allranks import vgpu
from allranks.vgpu import messages
from allranks.vgpu.cuda import functions


@pytest.fixture
def two():
    """Plug in two GPUs that are called cuda."""
    with vgpu.plugged_in(2, "64 MiB", kind="cuda") as machine:
        yield machine


@pytest.mark.parametrize(
    ("where", "index"),
    [("cuda", 0), ("cuda:1", 1), (1, 1), (torch.device("cuda", 1), 1)],
)
def test_a_device_has_one_name_however_it_is_given(two, where, index):
    here = torch.device("cuda", index)
    made = torch.ones(3, device=where)
    moved = torch.zeros(3).to(where)
    for tensor in (
        made,
        moved,
        torch.zeros(3).cuda(where),
        nn.Linear(1, 1).to(where).bias,
    ):
        assert tensor.device == here and tensor.is_cuda and not tensor.is_cpu
        assert tensor.type() == "torch.cuda.FloatTensor"
        assert tensor.get_device() == index
    assert f"device='cuda:{index}'" in repr(made)


def test_the_current_device_is_where_cuda_goes(two):
    torch.cuda.set_device(1)
    assert torch.cuda.current_device() == torch.accelerator.current_device_index() == 1
    with torch.cuda.device(0):
        assert torch.ones(1, device="cuda").device.index == 0
    assert torch.ones(1).cuda().device.index == 1
    with torch.device("cuda:0"):
        assert nn.Linear(2, 2).weight.device.index == 0
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.get_device_module() is torch.cuda


def test_what_is_not_there_is_refused_in_cudas_words(two):
    with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"):
        torch.cuda.set_device(2)
    for negative in (torch.ones(1).cuda, nn.Linear(1, 1).cuda, torch.ones(1).to):
        with pytest.raises(RuntimeError, match="Device index must not be negative"):
            negative(-1)
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory\. Tried to"):
        torch.empty(2**26, device="cuda")
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(7)
    with pytest.raises(
        NotImplementedError, match=r"torch\.accelerator\.Graph needs a real GPU"
    ):
        torch.accelerator.Graph()
    with pytest.raises(
        NotImplementedError, match=r"GreenContext\.create needs a real GPU"
    ):
        torch.cuda.GreenContext.create(num_sms=8)
    with pytest.raises(
        RuntimeError, match="found at least two devices, cuda:0 and cpu"
    ):
        torch.ones(2, device="cuda") + torch.ones(2)


def test_memory_is_told_by_all_of_cudas_functions(two):
    held = torch.ones(1000, device="cuda:1")
    assert torch.cuda.memory_allocated(1) == 4096 and not torch.cuda.memory_allocated(0)
    del held
    assert torch.cuda.memory_allocated(1) == 0
    assert torch.cuda.max_memory_allocated(1) == torch.cuda.memory_reserved(1) == 4096
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info(1) == (64 * 2**20, 64 * 2**20)
    assert torch.cuda.memory_stats(1)["allocated_bytes.all.peak"] == 4096
    assert "GPU reserved memory" in torch.cuda.memory_summary(1)
    assert len(torch.cuda.memory_snapshot()) == 2
    torch.cuda.reset_peak_memory_stats(1)
    assert torch.cuda.max_memory_allocated(1) == 0


def test_each_device_has_a_generator_of_16_bytes(two):
    torch.manual_seed(3)
    first = torch.rand(5, device="cuda:1")
    state = torch.cuda.get_rng_state(1)
    assert state.tolist()[:1] == [3] and state.numel() == 16
    assert state.tolist()[8] == 8  # five numbers, in fours
    second = torch.rand(5, device="cuda:1")
    torch.cuda.set_rng_state(state, 1)
    assert torch.rand(5, device="cuda:1").equal(second) and not first.equal(second)
    host = torch.get_rng_state()
    nn.functional.dropout(second)
    assert torch.get_rng_state().equal(host)
    torch.cuda.manual_seed_all(3)
    assert torch.rand(5, device="cuda:1").equal(first)
    with pytest.raises(RuntimeError, match="a GPU's has 16 bytes, not 5056"):
        torch.cuda.set_rng_state(host, 1)


@pytest.mark.parametrize(
    ("layer", "draws"),
    [
        (lambda x: F.scaled_dot_product_attention(x, x, x), False),
        (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), True),
        (lambda x: F.dropout(x, 0.0), False),
        (lambda x: F.dropout(x, 0.5, training=False), False),
        (lambda x: torch.native_dropout(x, 0.5, False), False),
        (lambda x: F.dropout(x, 0.5), True),
        (lambda x: F.rrelu(x, training=False), False),
        (lambda x: F.rrelu(x, training=True), True),
    ],
)
def test_a_generator_moves_only_for_what_draws(two, layer, draws):
    """CUDA draws nothing for a dropout of 0, and nothing in evaluation."""
    x = torch.randn(1, 2, 4, 8, device="cuda", requires_grad=True)
    before = torch.cuda.get_rng_state()
    layer(x)
    assert before.equal(torch.cuda.get_rng_state()) is not draws


def test_a_tensor_is_of_a_class_of_torchs_own(two):
    """tensorboardX, for one, takes what has "torch" in the name of its type."""
    assert str(type(torch.ones(1, device="cuda"))).startswith("<class 'torch.")


def test_streams_and_events_have_the_models_times(two):
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.Stream()
    before = torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream != before
        begun.record()
        torch.ones(1000, device="cuda").add_(1)
        ended.record()
    assert torch.cuda.current_stream() == before
    stream.wait_stream(before)
    torch.cuda.synchronize()
    assert 0.01 <= begun.elapsed_time(ended) < 1  # two ops of 5 µs and a little
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        torch.cuda.Event().elapsed_time(ended)
    with torch.cuda.nvtx.range("step"):
        assert not torch.cuda.is_current_stream_capturing()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_rounds_and_the_scaler_finds_what_overflows(two, dtype):
    net = nn.Linear(4, 1).cuda()
    x = torch.randn(8, 4, device="cuda")
    with torch.autocast("cuda", dtype):
        out = net(x)
    assert out.dtype == dtype
    want = nn.functional.linear(x.cpu().to(dtype), net.weight.cpu().to(dtype))
    assert (out.cpu() - net.bias.cpu().to(dtype)).sub(want).abs().max() < 0.02
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
    optimizer = torch.optim.AdamW(net.parameters())
    before = net.weight.detach().clone()
    with torch.autocast("cuda", torch.float16):
        loss = net(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert net.weight.equal(before) and scaler.get_scale() == 2.0**39


def test_a_checkpoint_is_tagged_and_mapped(two, tmp_path):
    torch.save({"x": torch.arange(3.0, device="cuda:1")}, tmp_path / "x.pt")

    def load(to):
        return torch.load(tmp_path / "x.pt", map_location=to)["x"]

    assert load(None).device == torch.device("cuda:1")
    assert load("cpu").device.type == "cpu"
    assert load("cuda:0").device == load({"cuda:1": "cuda:0"}).device
    assert load(lambda storage, where: storage).device.type == "cpu"


def test_a_card_presents_itself():
    with vgpu.plugged_in(1, kind="cuda", card="a100-40"):
        found = torch.cuda.get_device_properties(0)
        assert found.name == torch.cuda.get_device_name() == "NVIDIA A100-SXM4-40GB"
        assert found.total_memory == 40 * 10**9
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.is_bf16_supported()
    with pytest.raises(ValueError, match="there is no card 'a1000': b200, "):
        vgpu.plug_in(1, kind="cuda", card="a1000")
    with pytest.raises(ValueError, match="of kind 'rocm': vgpu or cuda"):
        vgpu.plug_in(1, kind="rocm")


def test_visible_devices_are_renumbered(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    with vgpu.plugged_in(4, kind="cuda") as machine:
        assert torch.cuda.device_count() == 2
        torch.ones(100, device="cuda:0")
        assert machine.built[2].peak > 0 == machine.built[0].peak
    assert functions.visible(2, "GPU-abc") == []


def test_unplugging_puts_everything_back():
    names = [(torch.Tensor, "cuda"), (torch, "compile"), (torch.cuda, "Stream")]
    names += [(torch._C, "_cuda_getDeviceCount")]  # which a CPU build does not have
    before = [getattr(owner, name, None) for owner, name in names]
    with vgpu.plugged_in(1, kind="cuda"):
        assert torch.cuda.is_available()
    assert [getattr(owner, name, None) for owner, name in names] == before
    assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
    with vgpu.plugged_in(1):
        assert str(torch.ones(1, device="vgpu").device) == "vgpu:0"


def test_compile_passes_the_function_through_and_says_so_once(two, capsys, monkeypatch):
    monkeypatch.setattr(messages, "said", set())
    monkeypatch.delenv("RANK", raising=False)

    @torch.compile
    def double(x):
        return 2 * x

    assert double(torch.ones(1, device="cuda")).item() == 2
    torch.compile(nn.Linear(1, 1), mode="max-autotune").compile()
    assert capsys.readouterr().err.count("torch.compile is passed over") == 1


def test_convolutions_in_fp16_round_once_and_are_not_slow(two):
    """They are those of fp32, rounded; torch's kernel takes 200 times as long."""
    values = torch.randn(2, 8, 9, 9), torch.randn(4, 8, 3, 3), torch.randn(2, 4, 9, 9)
    x, weight, above = (value.half() for value in values)
    wide = [x.float().requires_grad_(), weight.float().requires_grad_()]
    out = nn.functional.conv2d(*wide, padding=1)
    grads = torch.autograd.grad(out, wide, above.float())
    own = [x.cuda().requires_grad_(), weight.cuda().requires_grad_()]
    found = nn.functional.conv2d(*own, padding=1)
    assert found.dtype == torch.float16 and found.cpu().equal(out.half())
    for one, grad in zip(
        torch.autograd.grad(found, own, above.cuda()), grads, strict=True
    ):
        assert one.dtype == torch.float16 and one.cpu().equal(grad.half())
