"""What CUDA refuses is refused, and what only CUDA can do is done: one case for each.

The sentences are torch's own, as its sources have them.
"""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, random_split

from allranks import vgpu

APART = "Expected all tensors to be on the same device"
DRAWN = "Expected a 'cpu' device type for generator but found 'cuda'"


@pytest.fixture(autouse=True)
def two():
    """Plug in two GPUs that are called cuda."""
    with vgpu.plugged_in(2, "64 MiB", kind="cuda") as machine:
        yield machine


def on_gpu(*size):
    """Return ones on the current GPU."""
    return torch.ones(size, device="cuda")


@pytest.mark.parametrize(
    "index",
    [
        lambda: torch.tensor([0, 1], device="cuda"),
        lambda: torch.tensor([0, 1]),
        lambda: torch.tensor([True, True, False, False], device="cuda"),
        lambda: [0, 1],
        lambda: (..., [0, 1]),
    ],
)
def test_what_is_assigned_at_places_is_on_the_same_device(index):
    """A slice is filled by a copy, and a number may come from the host."""
    x, at = on_gpu(4), index()
    with pytest.raises(RuntimeError, match=APART):
        x[at] = torch.zeros(2)
    x[at], x[:2], x[at] = on_gpu(2), torch.zeros(2), torch.tensor(3.0)
    assert x.tolist() == [3, 3, 1, 1]


def test_results_go_to_places_of_the_host_by_a_copy_first():
    """It is the usual ``predictions[index] = model(x)``."""
    found = torch.zeros(4)
    for at in [0, 1], torch.tensor([True, True, False, False]):
        with pytest.raises(RuntimeError, match=APART):
            found[at] = on_gpu(2)
    found[:2] = on_gpu(2)
    assert found.tolist() == [1, 1, 0, 0]


def test_index_put_moves_indices_and_no_values():
    """The same rule, by its other name; a mask takes one number of the host."""
    x, at = on_gpu(4), torch.tensor([0, 1])
    for put in x.index_put_, x.index_put:
        with pytest.raises(RuntimeError, match=APART):
            put(indices=(at.cuda(),), values=torch.zeros(2))
    assert x.index_put((at,), on_gpu(2) * 2).tolist() == [2, 2, 1, 1]
    x[x > 0] = torch.zeros(1)
    assert x.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "meet",
    [
        lambda: torch.stack([on_gpu(), torch.tensor(1.0)]),
        lambda: nn.Embedding(3, 4).cuda()(torch.tensor(1)),
        lambda: on_gpu(3).index_select(0, torch.tensor(0)),
        lambda: torch.equal(on_gpu(), torch.tensor(1.0)),
        lambda: F.cross_entropy(on_gpu(4), torch.tensor(1)),
    ],
)
def test_a_number_of_the_host_meets_a_gpu_only_element_by_element(meet):
    """Where torch iterates over tensors it may, elsewhere it may not."""
    with pytest.raises(RuntimeError, match=APART):
        meet()
    x = on_gpu(3)
    for made in x * torch.tensor(2.0), torch.where(x > 0, x, torch.tensor(0.0)):
        assert made.is_cuda


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: torch.randperm(3, generator=g),
        lambda g: torch.rand(2, generator=g),
        lambda g: torch.empty(2).normal_(generator=g),
        lambda g: torch.multinomial(torch.ones(3), 1, generator=g),
        lambda g: random_split(range(4), [2, 2], generator=g),
        lambda g: list(DataLoader(range(4), shuffle=True, generator=g)),
    ],
)
def test_a_gpus_generator_draws_nothing_on_the_host(draw):
    """The error that everybody meets who seeds a loader for the GPU."""
    with pytest.raises(RuntimeError, match=DRAWN):
        draw(torch.Generator("cuda"))


def test_a_generator_of_the_users_has_a_state_as_cudas():
    """Seed and offset in 16 bytes; a copy goes on alike."""
    own = torch.Generator("cuda").manual_seed(5)
    first = torch.rand(3, generator=own, device="cuda")
    assert own.get_state().shape == (16,) and own.get_offset() == 4
    twin = own.clone_state()
    draws = [torch.rand(3, generator=g, device="cuda").tolist() for g in (own, twin)]
    assert draws[0] == draws[1] != first.tolist()
    with torch.device("cuda"):
        assert torch.randperm(3, generator=own).is_cuda


@pytest.mark.parametrize(
    ("multiply", "kernel"),
    [
        (lambda x: x @ x, "addmm_cuda"),
        (lambda x: torch.bmm(x[None], x[None]), "baddbmm_cuda"),
        (lambda x: x[0].dot(x[0]), "dot"),
    ],
)
def test_gpus_multiply_no_matrices_of_whole_numbers(multiply, kernel):
    """The CPU does; so do virtual GPUs that are not called cuda."""
    with pytest.raises(RuntimeError, match=f"\"{kernel}\" not implemented for 'Long'"):
        multiply(torch.ones(2, 2, dtype=torch.int64, device="cuda"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernels_that_the_cpu_lacks_in_16_bits_round_once(dtype):
    """A video model in AMP pools in 16 bits."""
    x = torch.randn(1, 2, 4, 4, 4, dtype=dtype)
    own = x.cuda().requires_grad_()
    F.avg_pool3d(own, 2).sum().backward()
    wide = x.float().requires_grad_()
    out = F.avg_pool3d(wide, 2)
    out.sum().backward()
    assert F.avg_pool3d(own, 2).cpu().equal(out.to(dtype))
    assert own.grad.dtype == dtype and own.grad.cpu().equal(wide.grad.to(dtype))


def test_autocast_reaches_functions_that_pass_on_no_result():
    """F.normalize gives ``out=None`` to what it calls."""
    half, full = on_gpu(4, 4).half(), on_gpu(4, 4)
    with torch.autocast("cuda"):
        made = F.normalize(half), torch.norm(half), torch.tensordot(full, half, dims=1)
    assert [one.dtype for one in made] == [torch.float32] * 3


def test_a_kernel_for_cuda_alone_is_refused_by_its_name():
    """torch's own words would speak of a backend that the script does not know."""

    @torch.library.custom_op("rehearsal::own", mutates_args=(), device_types="cuda")
    def own(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with pytest.raises(NotImplementedError, match="rehearsal::own, which has a kernel"):
        own(on_gpu(2))


def test_a_compiled_module_has_the_names_that_torch_gives_it():
    """Scripts look for _orig_mod, and checkpoints have it in their keys."""
    net = nn.Linear(2, 2).cuda()
    compiled = torch.compile(net)
    assert isinstance(compiled, torch._dynamo.OptimizedModule)
    assert compiled._orig_mod is net and torch.compile(compiled)._orig_mod is net
    assert list(compiled.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
    x = on_gpu(1, 2)
    assert compiled(x).equal(net(x)) and compiled.in_features == 2
    assert not compiled.eval()._orig_mod.training
    assert copy.deepcopy(compiled).weight.is_cuda


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d()).cuda(),
        lambda: nn.LazyConv2d(2, 3).to("cuda"),
        lambda: nn.LazyConv2d(2, 3, device="cuda"),
    ],
)
def test_a_lazy_module_gets_its_data_where_it_was_moved(make):
    """It has no shape yet when it moves."""
    net = make()
    assert net(on_gpu(1, 1, 5, 5)).is_cuda
    tensors = [*net.parameters(), *net.buffers()]
    assert all(one.is_cuda for one in tensors)
    assert all(type(p) is not nn.UninitializedParameter for p in net.parameters())
    assert nn.LazyLinear(2)(torch.ones(1, 3)).device.type == "cpu"


class Named(torch.Tensor):
    """A tensor of the reader's, with a method."""

    def name(self):
        """Return its name."""
        return "mine"


def test_a_tensor_of_the_readers_class_keeps_it():
    """Wherever it goes."""
    for made in torch.rand(2).as_subclass(Named).cuda(), on_gpu(2).as_subclass(Named):
        assert isinstance(made, Named) and made.name() == "mine" and made.is_cuda
    assert not (made * 1).cpu().is_cuda


def test_a_copy_keeps_what_torchs_keeps():
    """Of a parameter no gradient; of a tensor its marks, and views of one memory."""
    weight = nn.Parameter(on_gpu(3))
    weight.sum().backward()
    assert copy.deepcopy(weight).grad is None
    tensor = on_gpu(4)
    tensor.mark = "kept"
    whole, view = copy.deepcopy((tensor, tensor[:2]))
    view.zero_()
    assert whole.tolist() == [0, 0, 1, 1] and whole.mark == "kept" and whole.is_cuda


@pytest.mark.parametrize("where", [None, "cpu"])
def test_a_file_keeps_the_marks_of_tensors_and_parameters(where):
    """As torch.save does on any device."""
    things = [on_gpu(2), nn.Parameter(on_gpu(2))]
    for thing in things:
        thing.mark = "kept"
    file = io.BytesIO()
    torch.save(things, file)
    file.seek(0)
    loaded = torch.load(file, map_location=where, weights_only=False)
    assert [one.mark for one in loaded] == ["kept", "kept"]
    assert [one.is_cuda for one in loaded] == [where is None] * 2
    assert isinstance(loaded[1], nn.Parameter)


def test_a_stream_brings_its_device(two):
    """What is made in its block without an index is on the stream's device."""
    stream = torch.cuda.Stream(device=1)
    with torch.cuda.stream(stream), stream:
        assert torch.cuda.current_device() == 1
        assert on_gpu(1).device.index == 1
    assert torch.cuda.current_device() == 0
    torch.cuda.set_stream(stream)
    assert torch.cuda.current_device() == 1


def test_an_event_is_waited_for_and_not_what_comes_after(two):
    """The host's clock goes on to the event."""
    event = torch.cuda.Event()
    on_gpu(64, 64)
    event.record()
    at = two.devices[0].free_s
    for _ in range(50):
        on_gpu(64, 64) @ on_gpu(64, 64)
    event.synchronize()
    assert at <= two.host_s < two.devices[0].free_s


def test_backward_runs_on_the_device_of_the_graph():
    """As the engine's thread for that device does."""
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            seen.append(torch.cuda.current_device())
            return grad * torch.full((1,), 2.0, device="cuda")

    x = torch.ones(2, device="cuda:1", requires_grad=True)
    Double.apply(x).sum().backward()
    assert seen == [1] and x.grad.tolist() == [2, 2]
    assert torch.cuda.current_device() == 0


def test_a_share_of_the_memory_limits_the_process_alone():
    """The card has as much as before."""
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert torch.cuda.get_device_properties(0).total_memory == 64 * 2**20
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    on_gpu(4 * 2**20)
    with pytest.raises(torch.OutOfMemoryError, match="total capacity of 64"):
        on_gpu(9 * 2**20)


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_a_storage_is_read_and_copied():
    """It stays on its device, or goes to the host."""
    x = torch.arange(3.0, device="cuda")
    storage = x.storage()
    assert storage[1] == 1 and storage.tolist() == [0, 1, 2]
    assert storage.cpu().device.type == "cpu"
    twin = x.untyped_storage().clone()
    assert twin.device.type == "cuda"
    other = torch.empty(0, device="cuda").set_(twin, 0, (3,))
    other.zero_()
    assert x.tolist() == [0, 1, 2]


def test_a_cards_multiprocessors_have_their_own_limits():
    """A T4's are not an H100's."""
    with vgpu.plugged_in(1, kind="cuda", card="t4"):
        found = torch.cuda.get_device_properties(0)
        assert found.max_threads_per_multi_processor == 1024
        assert found.shared_memory_per_block_optin == 64 * 1024
