"""Virtual GPUs do as CUDA does: optimizers, gradients, moves, autocast, counts."""

import copy
import re
import sys
import textwrap
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn

from allranks import Ranks, vgpu
from allranks.vgpu import autocast, machine

OPTIM = torch.optim


@pytest.fixture(autouse=True)
def two():
    """Plug in two devices."""
    with vgpu.plugged_in(2, memory="64 MiB") as plugged:
        yield plugged


class TestOptimizers:
    """Optimizers over two devices: torch groups parameters and works by group."""

    @staticmethod
    def train(places, make, **clip) -> list[torch.Tensor]:
        """Train two layers, one per place; return weights and unclipped norms."""
        torch.manual_seed(0)
        parts = nn.Linear(5, 4).to(places[0]), nn.Linear(4, 3).to(places[1])
        params = [p for part in parts for p in part.parameters()]
        steps, norms = make(params), []
        for _ in range(3):
            hidden = parts[0](torch.randn(6, 5).to(places[0])).tanh()
            steps.zero_grad()
            parts[1](hidden.to(places[1])).square().mean().backward()
            norms.append(nn.utils.clip_grad_norm_(params, 0.5, **clip))
            steps.step()
        return [t.detach().cpu() for t in params + norms]

    @pytest.mark.parametrize("how", ["foreach", "fused"])
    @pytest.mark.parametrize("clip", [{}, {"foreach": True}, {"foreach": False}])
    @pytest.mark.parametrize(
        "kind", [OPTIM.SGD, OPTIM.Adam, OPTIM.AdamW, OPTIM.RMSprop, OPTIM.Adagrad]
    )
    def test_foreach_and_fused_over_two_devices(self, kind, clip, how):
        """The weights are those of a CPU, to the last bit."""
        if (kind, how) == (OPTIM.RMSprop, "fused"):
            how = "foreach"  # RMSprop is the only one here without a fused form

        def make(params):
            return kind(params, lr=0.1, **{how: True})

        mine = self.train(("vgpu:0", "vgpu:1"), make, **clip)
        truth = self.train(("cpu", "cpu"), make, **clip)
        assert all(map(torch.equal, mine, truth)) and len(mine) == 7

    def test_foreach_is_the_default(self, monkeypatch):
        """Adam takes foreach unless told otherwise, as on CUDA."""
        seen, adam = [], sys.modules[OPTIM.Adam.__module__]
        work = adam._multi_tensor_adam
        monkeypatch.setattr(
            adam,
            "_multi_tensor_adam",
            lambda *args, **kwargs: seen.append(len(args[0])) or work(*args, **kwargs),
        )
        self.train(("vgpu:0", "vgpu:1"), OPTIM.Adam)
        assert seen == [4, 4, 4]
        self.train(("cpu", "cpu"), OPTIM.Adam)
        assert seen == [4, 4, 4], "on the CPU it is not"

    def test_lists_over_two_devices(self):
        """Results keep order and device; a row that mixes devices is refused."""
        lists = [torch.full((2,), float(i), device=f"vgpu:{i % 2}") for i in range(4)]
        out = torch._foreach_add(lists, [10.0, 20.0, 30.0, 40.0])
        assert [str(t.device) for t in out] == ["vgpu:0", "vgpu:1"] * 2
        assert [t[0].item() for t in out] == [10, 21, 32, 43]
        assert [n.item() for n in torch._foreach_norm(lists, 1)] == [0, 2, 4, 6]
        torch._foreach_mul_(lists, out)
        assert [t[0].item() for t in lists] == [0, 21, 64, 129]
        host = [torch.zeros(2) for _ in lists]
        torch._foreach_copy_(host, lists)
        assert [t[0].item() for t in host] == [0, 21, 64, 129]
        with pytest.raises(RuntimeError, match="two devices, vgpu:0 and vgpu:1"):
            torch._foreach_add_(lists, lists[::-1])

    def test_a_scaler_over_two_devices(self):
        """torch.amp.GradScaler unscales each device's gradients, and skips infinity."""
        params = [torch.ones(3, device=f"vgpu:{i}", requires_grad=True) for i in (0, 1)]
        steps = OPTIM.SGD(params, 0.5)
        scaler = torch.amp.GradScaler("vgpu", init_scale=4.0)
        for factor, expected in ((1.0, 0.5), (float("inf"), 0.5)):
            loss = params[0].sum() + (params[1] * factor).sum().to("vgpu:0")
            steps.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(steps)
            scaler.update()
            assert [p[0].item() for p in params] == [expected] * 2
        assert scaler.get_scale() == 2.0


class TestData:
    """``.data =`` and moves keep the object, and all that refers to it."""

    @pytest.mark.parametrize("kind", [nn.Parameter, torch.Tensor.clone])
    def test_data_goes_to_any_device_and_back(self, kind):
        """It stays the same object, and nothing is left on the old device."""
        one = kind(torch.arange(4.0))
        for where in ("vgpu:1", "vgpu:0", "cpu"):
            one.data = one.data.to(where)
            assert str(one.device) == where and one.tolist() == [0, 1, 2, 3]
            assert isinstance(one, nn.Parameter) == (kind is nn.Parameter)
        one.data = torch.ones(2, 3, dtype=torch.float64, device="vgpu:0")
        assert one.shape == (2, 3) and one.dtype == torch.float64
        assert torch.vgpu.memory_allocated(0) == 512
        assert torch.vgpu.memory_allocated(1) == 0

    def test_data_counts_once(self):
        """The memory that the tensor held before is free again."""
        one = torch.zeros(1024, device="vgpu:0")
        one.data = torch.zeros(2048, device="vgpu:0")
        assert torch.vgpu.memory_allocated(0) == 8192 and len(one) == 2048

    def test_data_is_out_of_autograds_sight(self):
        """Autograd doesn't notice a change through ``.data``, as for any tensor."""
        for where in ("cpu", "vgpu:0"):
            one = torch.ones(2, device=where, requires_grad=True)
            loss = one.square().sum()
            one.data.mul_(3)
            loss.backward()
            assert one.grad.tolist() == [6, 6]

    def test_a_move_keeps_hooks_and_attributes(self):
        """Hooks and attributes survive, as on CUDA, where it is the same tensor."""
        net, seen = nn.Linear(2, 1), []
        net.weight.no_decay = True
        handle = net.weight.register_hook(lambda g: seen.append(str(g.device)))
        net.bias.register_post_accumulate_grad_hook(
            lambda p: seen.append(str(p.grad.device))
        )
        for where in ("vgpu:0", "vgpu:1", "cpu"):
            net.to(where)(torch.ones(1, 2, device=where)).sum().backward()
        assert sorted(seen) == sorted(["vgpu:0", "vgpu:1", "cpu"] * 2)
        assert net.weight.no_decay and net.weight.grad.tolist() == [[3, 3]]
        handle.remove()
        net(torch.ones(1, 2)).sum().backward()
        assert len(seen) == 7

    def test_a_move_while_a_graph_or_a_weak_reference_knows_the_tensor(self):
        """Backward through a graph from before the move is refused."""
        net = torch.nn.utils.weight_norm(nn.Linear(2, 1))  # weight is not a leaf
        known = weakref.ref(net.bias)
        stale = net(torch.ones(1, 2))
        net.to("vgpu:1")
        assert known() is net.bias and str(net.bias.device) == "vgpu:1"
        with pytest.raises(
            RuntimeError, match="leaf has moved to another device since"
        ):
            stale.sum().backward()
        net(torch.ones(1, 2, device="vgpu:1")).sum().backward()
        assert str(net.weight_g.grad.device) == "vgpu:1"

    def test_a_module_comes_back_after_unplugging(self):
        """Gradients come along, and an optimizer's references stay valid."""
        net = nn.Linear(2, 1).to("vgpu:1")
        weight = net.weight
        net(torch.ones(1, 2, device="vgpu:1")).sum().backward()
        vgpu.unplug()
        net.cpu()
        assert net.weight is weight and type(weight) is nn.Parameter
        assert weight.grad.tolist() == [[1, 1]] and weight.grad.is_cpu

    def test_a_size_changes_in_place(self, two):
        """Memory follows ``resize_`` and ``out=``; if it runs out, nothing changes."""
        one = torch.ones(3, device="vgpu:0")
        one.resize_(1024)
        assert one.shape == (1024,) and torch.vgpu.memory_allocated(0) == 4096
        out = torch.empty(0, device="vgpu:0")
        torch.add(one[:300], 1, out=out)
        assert out.shape == (300,) and out[:3].tolist() == [2, 2, 2]
        assert torch.vgpu.memory_allocated(0) == 4096 + 1536
        with pytest.raises(torch.OutOfMemoryError):
            out.resize_(2**26)
        assert out.shape == (300,) and torch.vgpu.memory_allocated(0) == 4096 + 1536


class TestBirths:
    """Tensors that torch creates in C++ are on the device of the inputs."""

    @pytest.mark.parametrize(
        "make",
        [
            lambda x: rnn.pad_sequence([x, x[:2]]),
            lambda x: rnn.pack_sequence([x, x[:2]]).data,
            lambda x: x.new(2, 3),
            lambda x: x.new([1.0, 2.0]),
            lambda x: torch.vander(x),
            lambda x: torch.linalg.matrix_rank(x.outer(x)),
            lambda x: torch.block_diag(x, x),
            lambda x: torch.cartesian_prod(x, x),
        ],
    )
    def test_a_function_answers_on_its_inputs_device(self, make):
        """The result has the CPU's values, and nothing was copied."""
        x = torch.tensor([3.0, 1.0, 2.0])
        truth, x = make(x), x.to("vgpu:1")
        vgpu.clear_events()
        made = make(x)
        assert str(made.device) == "vgpu:1" and made.shape == truth.shape
        if truth.numel() != 6 or truth.dim() != 2:  # x.new(2, 3) is uninitialised
            assert torch.equal(made.cpu(), truth)
        assert "copies" not in [e.op for e in vgpu.events()]

    def test_padding_moves_nothing_and_can_be_differentiated(self):
        """pad_sequence fills its result piece by piece, and does so on the device."""
        x = torch.arange(3.0, device="vgpu:1", requires_grad=True)
        vgpu.clear_events()
        rnn.pad_sequence([x, x[:1]]).sum().backward()
        assert not [e for e in vgpu.events() if e.source]
        assert x.grad.tolist() == [2, 1, 1] and str(x.grad.device) == "vgpu:1"

    def test_the_current_device_is_where_vgpu_means(self):
        """Factories and torch.device take the current device; copies count."""
        torch.vgpu.set_device(1)
        vgpu.clear_events()
        made = [
            torch.tensor([1.0], device="vgpu"),
            torch.as_tensor([1.0], device="vgpu"),
        ]
        with torch.device("vgpu"):
            made += [torch.tensor([1.0]), torch.ones(1), torch.as_tensor([1.0])]
        assert {str(t.device) for t in made} == {"vgpu:1"}
        assert repr(vgpu.traffic()).splitlines()[1] == "cpu   vgpu:1  4       16"
        leaf = torch.tensor([1.0], device="vgpu:0", requires_grad=True)
        assert leaf.is_leaf and leaf.requires_grad

    def test_lengths_lie_on_the_host(self):
        """Lengths on a device are refused in CUDA's words."""
        x, lengths = torch.ones(2, 3, 1, device="vgpu:0"), torch.tensor([3, 2])
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True)
        assert str(packed.data.device) == "vgpu:0" and packed.batch_sizes.is_cpu
        with pytest.raises(RuntimeError, match="should be a 1D CPU int64 tensor, but"):
            rnn.pack_padded_sequence(x, lengths.to("vgpu:0"), batch_first=True)


class Wrong(torch.autograd.Function):
    """A Function whose gradient is on the CPU, wherever its input is."""

    @staticmethod
    def forward(ctx, number, x):
        """Multiply a tensor by a number."""
        return x * number

    @staticmethod
    def backward(ctx, grad):
        """Return a gradient on the CPU."""
        return None, torch.ones(grad.shape)


class Half(torch.autograd.Function):
    """A Function with two outputs, of which the caller uses only one."""

    @staticmethod
    def forward(ctx, x):
        """Split off the first entry."""
        return x[:1].clone(), x[1:].clone()

    @staticmethod
    def backward(ctx, first, second):
        """Join both gradients; the engine makes zeros for the unused output."""
        return torch.cat([first, second])


class TestGradients:
    """What autograd's engine checks about gradients, and those that it makes itself."""

    @pytest.mark.parametrize("function", [torch.sgn, torch.sign, lambda x: x.repeat(0)])
    def test_zeros_of_the_engine_are_on_the_device(self, function):
        """Zeros are on the device, also before a move, and hooks see them there."""
        x = torch.ones(3, device="vgpu:1", requires_grad=True)
        seen = []
        x.register_hook(lambda grad: seen.append(str(grad.device)))
        function(x).to("vgpu:0").sum().backward()
        (grad,) = torch.autograd.grad(function(x).sum().cpu(), x)
        assert {str(x.grad.device), str(grad.device), *seen} == {"vgpu:1"}
        assert x.grad.tolist() == grad.tolist() == [0, 0, 0]

    def test_what_python_makes_on_the_host_stays_there(self):
        """A recomputed forward and a hook get the CPU if that is what they ask for."""
        found = []

        def forward(x):
            found.append(torch.zeros(3))
            return x.exp()

        x = torch.ones(3, device="vgpu:1", requires_grad=True)
        torch.utils.checkpoint.checkpoint(
            forward, x, use_reentrant=False
        ).sum().backward()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: found.append(torch.zeros(3)) or t, lambda t: t
        ):
            x.exp().sum().backward()
        assert len(found) == 3 and all(type(t) is torch.Tensor for t in found)

    def test_first_gradients_lie_where_the_outputs_lie(self):
        """A first gradient on another device is refused in the engine's words."""
        x = torch.ones(3, device="vgpu:1", requires_grad=True)
        says = "index 0 - expected device vgpu:1 but got {}"
        for where in ("cpu", "vgpu:0"):
            grad = torch.ones(3, device=where)
            with pytest.raises(RuntimeError, match=says.format(where)):
                (x * 2).backward(grad)
            with pytest.raises(RuntimeError, match=says.format(where)):
                torch.autograd.grad(x * 2, x, grad)
        with pytest.raises(RuntimeError, match="expected device cpu but got vgpu:0"):
            torch.ones(3, requires_grad=True).exp().backward(grad)
        (x * 2).sum().backward(torch.tensor(2.0))
        assert x.grad.tolist() == [4, 4, 4], "a number goes anywhere"

    def test_a_function_must_return_gradients_on_the_device(self):
        """A gradient on the wrong device raises an error with the Function's name."""
        x = torch.ones(3, device="vgpu:1", requires_grad=True)
        says = "WrongBackward returned an invalid gradient at index 0 - expected device"
        with pytest.raises(RuntimeError, match=f"{says} vgpu:1 but got cpu"):
            Wrong.apply(2, x).sum().backward()
        here = torch.ones(3, requires_grad=True)
        Wrong.apply(2, here).sum().backward()
        Half.apply(x)[1].sum().backward()
        assert x.grad.tolist() == [0, 1, 1] and str(x.grad.device) == "vgpu:1"

    def test_dataparallel_over_a_frozen_layer(self):
        """The other layer gets the gradient of the full batch, the frozen one none."""
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
        net[0].requires_grad_(False)
        truth, x = copy.deepcopy(net), torch.randn(4, 2, dtype=torch.float64)
        truth(x).sum().backward()
        nn.DataParallel(net.to("vgpu:0"), [0, 1])(x.to("vgpu:0")).sum().backward()
        assert net[0].weight.grad is None
        torch.testing.assert_close(net[2].weight.grad.cpu(), truth[2].weight.grad)

    def test_device_ids_that_are_not_there(self):
        """An unknown device is refused when the wrapper is built."""
        net = nn.Linear(1, 1).to("vgpu:0")
        for ids in ([0, 9], [0, torch.device("vgpu:9")]):
            with pytest.raises(RuntimeError, match="vgpu:9 is not plugged in: 0 to 1"):
                nn.DataParallel(net, ids)
        with pytest.raises(RuntimeError, match="vgpu:7 is not plugged in"):
            nn.DataParallel(net, [0, 1], output_device=7)


def header() -> dict[str, set[str]]:
    """Return the names in CUDA's autocast lists, read from a header of torch."""
    path = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    found: dict[str, set[str]] = {}
    for part in path.read_text().split("#define AT_FORALL_")[1:]:
        head, _, rest = part.partition("(_)")
        body = rest.split("\n\n")[0]
        found[head] = set(re.findall(r"_\((?:ADD_NS\()?(\w+)", body)) - {"ADD_NS"}
    return found


class TestAutocast:
    """Autocast for "vgpu" by CUDA's lists; the CPU's autocast has no effect there."""

    def test_the_lists_are_cudas(self):
        """Each op in torch's header is in the same list here."""
        lists = header()
        for name, kind in {
            "LOWER_PRECISION_FP": "lower",
            "FP32": "float",
            "FP32_SET_OPT_DTYPE": "float result",
            "DIFFERENT_REDISPATCH_SIGNATURE": "float",
            "PROMOTE": "widest",
        }.items():
            assert lists[name], name
            for op in lists[name]:
                assert autocast.KIND[op] == kind, op

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_results_have_cudas_dtypes(self, dtype):
        """Products are in 16 bits, sums and losses in float32, others unchanged."""
        x = torch.randn(4, 4, device="vgpu:1")
        low, ids = x.to(dtype), torch.arange(4, device="vgpu:1")
        with torch.autocast("vgpu", dtype):
            for made in (
                x @ x,
                torch.mm(x, low),
                F.linear(x, x),
                low + low,
                low.relu(),
            ):
                assert made.dtype == dtype
            for made in (low.exp(), low.sum(), F.softmax(low, 1), low**2, low.norm()):
                assert made.dtype == torch.float32
            assert F.cross_entropy(low, ids).dtype == torch.float32
            assert F.layer_norm(low, (4,)).dtype == torch.float32
            assert torch.atan2(x, low).dtype == (low + x).dtype == torch.float32
            assert (x.double() @ x.double()).dtype == torch.float64
            assert x.cumsum(0, dtype=torch.float64).dtype == torch.float64
            with torch.autocast("vgpu", enabled=False):
                assert (x @ x).dtype == torch.float32
            with pytest.raises(RuntimeError, match="unsafe to autocast"):
                F.binary_cross_entropy(x.sigmoid(), x.sigmoid())
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert (x @ x).dtype == torch.float32

    def test_autocast_of_the_cpu_does_not_reach_them(self):
        """Neither forward nor backward is cast; tensors of the CPU still are."""
        x = torch.randn(4, 4, device="vgpu:0", requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            out = x @ x
            attended = nn.MultiheadAttention(4, 1).to("vgpu:0")(x, x, x)[0]
            assert out.dtype == attended.dtype == torch.float32
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
            out.sum().backward()
        again = x.detach().cpu().requires_grad_()
        (again @ again).sum().backward()
        assert torch.equal(x.grad.cpu(), again.grad)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)),
            lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 2)),
        ],
    )
    def test_gradients_are_the_cpus_autocasts(self, make):
        """Where the two lists agree, results are equal to the last bit.

        Weights and gradients stay in float32.
        """
        torch.manual_seed(0)
        net, x = make(), torch.randn(5, 8)
        twin = copy.deepcopy(net).to("vgpu:1")
        with torch.autocast("cpu", torch.bfloat16):
            truth = net(x)
        with torch.autocast("vgpu", torch.bfloat16):
            mine = twin(x.to("vgpu:1"))
        truth.float().sum().backward()
        mine.float().sum().backward()
        assert mine.dtype == torch.bfloat16 and torch.equal(mine.cpu(), truth)
        for a, b in zip(twin.parameters(), net.parameters(), strict=True):
            assert a.grad.dtype == torch.float32 and torch.equal(a.grad.cpu(), b.grad)

    def test_python_functions_are_cast_op_by_op(self):
        """In attention, which is Python, products are cast, but not the weights."""
        attention = nn.MultiheadAttention(8, 2).to("vgpu:0")
        x = torch.randn(3, 1, 8, device="vgpu:0")
        with torch.autocast("vgpu", torch.bfloat16):
            out, weights = attention(x, x, x)
            assert len(torch.meshgrid(x[0, 0], x[1, 0], indexing="ij")) == 2
            assert torch.unique(x).dtype == torch.float32
        assert out.dtype == torch.bfloat16 and weights.dtype == torch.float32

    def test_python_that_the_engine_calls_is_cast_and_checked(self):
        """A Function's backward and a recomputed forward are cast and checked."""

        class Product(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="vgpu")
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                return a.mm(b)

            @staticmethod
            @torch.amp.custom_bwd(device_type="vgpu")
            def backward(ctx, grad):
                a, b = ctx.saved_tensors
                found.append(grad.mm(b.t()).dtype)
                with pytest.raises(RuntimeError, match="at least two devices"):
                    grad + torch.ones(2, 2)
                return grad.mm(b.t()), a.t().mm(grad)

        found = []
        x = torch.randn(2, 2, device="vgpu:1", requires_grad=True)
        net = nn.Linear(2, 2).to("vgpu:1")
        with torch.autocast("vgpu", torch.bfloat16):
            product = Product.apply(x, x)
            again = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False)
        (product + again).float().sum().backward()
        assert found == [torch.bfloat16] and x.grad.dtype == torch.float32

    def test_a_dtype_that_cannot_be(self):
        """Autocast to float64 is refused by torch's own warning."""
        with pytest.warns(UserWarning, match="Disabling autocast"):
            torch.autocast("vgpu", dtype=torch.float64)


class TestGenerators:
    """Random generators that belong to a device."""

    def test_a_seed_gives_the_cpus_numbers(self):
        """The same seed gives the same numbers in factories, methods and functions."""

        def draw(device):
            dice = torch.Generator(device).manual_seed(5)
            x = torch.rand(4, generator=dice, device=device)
            y = torch.empty(4, device=device).exponential_(generator=dice)
            z = torch.multinomial(x, 2, generator=dice)
            return [x, y, z, torch.randperm(9, generator=dice, device=device)]

        for mine, truth in zip(draw("vgpu:1"), draw("cpu"), strict=True):
            assert str(mine.device) == "vgpu:1" and torch.equal(mine.cpu(), truth)
        dice = torch.Generator("vgpu")
        assert isinstance(dice, torch.Generator) and str(dice.device) == "vgpu:0"
        state = dice.get_state()
        first = torch.rand(1, generator=dice, device="vgpu").item()
        assert torch.rand(1, generator=dice.set_state(state), device="vgpu") == first

    def test_a_generator_of_the_cpu_is_refused(self):
        """A CPU generator for a device is refused in torch's words."""
        dice = torch.Generator()
        says = "Expected a 'vgpu' device type for generator but found 'cpu'"
        for draw in (
            lambda: torch.rand(1, generator=dice, device="vgpu:0"),
            lambda: torch.ones(1, device="vgpu:0").normal_(generator=dice),
        ):
            with pytest.raises(RuntimeError, match=says):
                draw()
        with pytest.raises(RuntimeError, match="vgpu:5 is not plugged in"):
            torch.Generator("vgpu:5")

    def test_the_modules_seed_is_the_seed(self):
        """torch.vgpu.manual_seed makes numbers repeatable, as torch.cuda's does."""
        found = []
        for _ in range(2):
            torch.vgpu.manual_seed(3)
            found.append(torch.rand(1, device="vgpu").item())
        assert found[0] == found[1]

    @pytest.mark.parametrize(
        "name",
        ["Exponential", "Laplace", "Cauchy", "Weibull", "Geometric", "Multinomial"],
    )
    def test_distributions_sample(self, name):
        """Samples are those of the CPU, on the device of the parameters."""
        half = torch.tensor([0.5, 0.5])
        given = {"Exponential": [half], "Geometric": [half], "Multinomial": [5, half]}

        def sample(device):
            torch.manual_seed(2)
            args = given.get(name, [half, half])
            args = [a.to(device) if torch.is_tensor(a) else a for a in args]
            return getattr(torch.distributions, name)(*args).sample((3,))

        mine, truth = sample("vgpu:1"), sample("cpu")
        assert str(mine.device) == "vgpu:1" and torch.equal(mine.cpu(), truth)


class TestCounts:
    """Memory statistics, and a log of events that cannot grow without end."""

    def test_memory_stats(self):
        """torch.accelerator and torch.vgpu agree, with CUDA's names."""
        one = torch.ones(1024, device="vgpu:1")
        two = torch.ones(256, device="vgpu:1")
        del two
        stats = torch.accelerator.memory_stats(1)
        assert stats == torch.vgpu.memory_stats("vgpu:1")
        assert stats["allocated_bytes.all.current"] == 4096 == one.nbytes
        assert stats["allocated_bytes.all.peak"] == 5120
        assert stats["allocated_bytes.all.freed"] == 1024
        assert stats["allocation.all.current"] == 1 and stats["num_ooms"] == 0
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2**30, device="vgpu:1")
        assert torch.vgpu.memory_stats(1)["num_ooms"] == 1
        torch.accelerator.reset_accumulated_memory_stats(1)
        assert torch.vgpu.memory_stats(1)["allocated_bytes.all.freed"] == 0

    def test_the_log_keeps_the_last_events_and_all_copies(self, monkeypatch):
        """The traffic table stays exact, and the timeline says what it leaves out."""
        monkeypatch.setattr(machine, "LOG_EVENTS", 10)
        with vgpu.plugged_in(2):
            x = torch.ones(4)
            for _ in range(30):
                x.to("vgpu:0")
            assert len(vgpu.events()) == 10
            assert repr(vgpu.traffic()).splitlines()[1] == "cpu   vgpu:0  30      480"
            assert "the last 10 events of 30" in vgpu.timeline().html
            vgpu.clear_events()
            assert not vgpu.events() and len(repr(vgpu.traffic()).splitlines()) == 1


def test_ddp_on_virtual_gpus_over_gloo():
    """With a device each, autocast and clipping, two ranks' replicas stay equal."""
    code = """
        from torch import nn
        from allranks import vgpu
        vgpu.plug_in(2)
        torch.manual_seed(rank)
        here = f"vgpu:{rank}"
        ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 2).to(here))
        steps = torch.optim.Adam(ddp.parameters())
        for _ in range(2):
            with torch.autocast("vgpu", torch.bfloat16):
                loss = ddp(torch.randn(3, 4).to(here)).float().square().mean()
            steps.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            steps.step()
        weight = ddp.module.weight
        (str(weight.device), weight.tolist(), torch.randn(1).item())
    """
    with Ranks(2) as ranks:
        first, second = ranks.run(textwrap.dedent(code))
    assert (first[0], second[0]) == ("vgpu:0", "vgpu:1")
    assert first[1] == second[1] and first[2] != second[2]
