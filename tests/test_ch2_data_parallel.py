"""Chapter 2's script trains on cut batches as on whole ones, and as torch does."""

import ast
import copy
import gc
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from allranks import vgpu
from allranks.topics.data_parallel.picture import steps
from allranks.topics.data_parallel.sums import ring_bytes, step_bytes
from scripts import ch2_data_parallel as ch2
from scripts import ch5_single

STEPS = ["--epochs=2", "--samples=50", "--batch-size=20"]  # 20 + 20 + 10
ENGINE = "scatter", "replicate", "parallel_apply", "gather", "MiniDataParallel"
NO_GPU = not torch.accelerator.is_available()


@pytest.fixture
def double():
    """Make new tensors float64, and use one thread because the operations are small."""
    before = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(before[0])
    torch.set_num_threads(before[1])


@pytest.fixture
def four():
    """Plug in four virtual GPUs."""
    with vgpu.plugged_in(4):
        yield


def mini(net: nn.Module, num_devices: int = 4) -> nn.Module:
    """Return our class on virtual GPUs."""
    return ch2.MiniDataParallel(net, [f"vgpu:{i}" for i in range(num_devices)])


def real(net: nn.Module, num_devices: int = 4) -> nn.Module:
    """Return torch's class on virtual GPUs."""
    return nn.DataParallel(net, list(range(num_devices)))


BOTH = pytest.mark.parametrize("wrap", [mini, real])


class Times(nn.Module):
    """A net that returns x times a weight and lists what each replica saw."""

    def __init__(self):
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.ones(1)), []

    def forward(self, x, *more, **named):
        self.seen.append((x.device.index, len(x)))
        return x * self.weight


def test_the_engine_has_at_most_60_lines():
    """The engine is as short as the page says."""
    tree = ast.parse(Path(ch2.__file__).read_text("utf8"))
    sizes = {
        node.name: node.end_lineno - node.lineno + 1
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in ENGINE
    }
    assert set(sizes) == set(ENGINE)
    assert sum(sizes.values()) <= 60


class TestTheorem:
    """Gradients summed over shards are the gradient of the undivided batch."""

    @pytest.mark.parametrize("devices", ["cpu", "cpu,cpu", "cpu,cpu,cpu,cpu"])
    def test_the_script_trains_as_one_process_does(self, devices, double):
        """Losses are those of chapter 5's single process, short last batch included."""
        many = ch2.train(ch2.parse_args([*STEPS, f"--devices={devices}"]))
        one = ch5_single.train(ch5_single.parse_args(STEPS), torch.device("cpu"))
        assert len(many) == len(one) == 2 * 3
        torch.testing.assert_close(many, one, rtol=0, atol=1e-10)

    @pytest.mark.parametrize("flags", [[], ["--real"]], ids=["mini", "real"])
    def test_on_virtual_gpus_too(self, flags, double, four):
        """The script finds virtual GPUs, and both classes match undivided training."""
        many = ch2.train(ch2.parse_args([*STEPS, *flags]))
        assert {str(loss.device) for loss in many} == {"vgpu:0"}
        one = ch5_single.train(ch5_single.parse_args(STEPS), torch.device("cpu"))
        many = [loss.cpu() for loss in many]
        torch.testing.assert_close(many, one, rtol=0, atol=1e-10)

    @settings(max_examples=25, deadline=None)
    @given(st.integers(1, 5), st.integers(1, 9))
    def test_any_batch_on_any_number_of_devices(self, num_devices, size):
        """Gradients match, also with tied, frozen and absent weights."""
        torch.manual_seed(size)
        net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3))
        net[2].weight = net[0].weight  # tied
        net[2].bias.requires_grad_(False)
        net[0].register_module("nothing", None)
        net = net.double()
        whole, x = copy.deepcopy(net), torch.randn(size, 3).double()
        model = ch2.MiniDataParallel(net, ["cpu"] * num_devices)
        for each in model, whole:
            each(x).square().sum().backward()
        torch.testing.assert_close(net[0].weight.grad, whole[0].weight.grad)
        assert net[2].bias.grad is None


class TestAsTorch:
    """Our class does to tensors, buffers and devices what nn.DataParallel does."""

    @BOTH
    @pytest.mark.parametrize(
        "size, shares", [(8, [2, 2, 2, 2]), (5, [2, 2, 1]), (3, [1, 1, 1]), (1, [1])]
    )
    def test_shares(self, wrap, size, shares, four):
        """Shares are those of chunk(), and a device without a share gets no replica."""
        net = Times().to("vgpu:0")
        x = torch.arange(float(size))
        vgpu.clear_events()
        output = wrap(net)(x)
        reached = {event.target for event in vgpu.events() if event.source}
        assert torch.equal(output.cpu(), x)
        assert sorted(net.seen) == list(enumerate(shares))
        assert reached == {f"vgpu:{index}" for index in range(len(shares))}

    @BOTH
    def test_nested_inputs_and_outputs(self, wrap, four):
        """Tensors inside tuples, lists and dicts are cut, and all else is shared."""

        class Nested(nn.Module):
            def forward(self, x, pair, *, table, scale):
                assert len(x) == len(pair[0]) == len(table["deep"][0]) == 2
                assert (pair[1], scale) == ("text", 3)
                assert x.device == pair[0].device == table["deep"][0].device
                return {"sum": x + pair[0], "more": (x * scale, [x]), "none": None}

        x = torch.arange(8.0)
        output = wrap(Nested())(x, [x, "text"], table={"deep": (x,)}, scale=3)
        assert torch.equal(output["sum"].cpu(), 2 * x)
        assert torch.equal(output["more"][0].cpu(), 3 * x)
        assert isinstance(output["more"], tuple) and isinstance(output["more"][1], list)
        assert output["none"] is None

    @BOTH
    def test_inputs_of_unequal_length_lose_rows(self, wrap, four):
        """Rows of the longer input are dropped without an error, as the page warns."""
        assert len(wrap(Times().to("vgpu:0"))(torch.ones(8), torch.ones(2))) == 4

    @BOTH
    def test_scalars_come_back_as_a_vector(self, wrap, four):
        """There is one scalar per replica, and torch's class warns of it."""

        class Mean(Times):
            def forward(self, x):
                return (x * self.weight).mean()

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            losses = wrap(Mean().to("vgpu:0"))(torch.arange(5.0))
        assert losses.tolist() == [0.5, 2.5, 4.0]
        assert [str(w.message)[:27] for w in caught] == (
            ["Was asked to gather along d"] if wrap is real else []
        )
        losses.mean().backward()

    @BOTH
    def test_what_forward_leaves_behind(self, wrap, four):
        """Only what replica 0 writes into a buffer in place survives."""

        class Counter(Times):
            def __init__(self):
                super().__init__()
                self.number = 0
                self.register_buffer("in_place", torch.zeros(1))
                self.register_buffer("assigned", torch.zeros(1))
                self.register_buffer("absent", None)

            def forward(self, x):
                assert self.absent is None
                self.number += 1
                self.in_place += 1
                self.assigned = self.assigned + 1
                return x * self.weight

        net = Counter().to("vgpu:0")
        model = wrap(net)
        for _ in range(2):
            model(torch.ones(8))
        assert (net.number, net.in_place.item(), net.assigned.item()) == (0, 2, 0)

    @BOTH
    @pytest.mark.parametrize("num_devices, mean", [(1, 3.5), (2, 1.5), (4, 0.5)])
    def test_batch_norm_keeps_the_statistics_of_shard_0(
        self, wrap, num_devices, mean, four
    ):
        """The running mean is that of shard 0 alone, when the batch is 0 to 7."""
        norm = nn.BatchNorm1d(1, momentum=1.0).to("vgpu:0")
        wrap(norm, num_devices)(torch.arange(8.0)[:, None])
        assert norm.running_mean.item() == mean
        assert norm.num_batches_tracked.item() == 1

    @BOTH
    def test_hooks_fire_once_per_replica(self, wrap, four):
        """A forward hook fires per replica, but a parameter's once, with the sum."""
        fired, grads = [], []
        layer = nn.Linear(1, 1).to("vgpu:0")
        layer.register_forward_hook(
            lambda m, _, y: fired.append((y.device.index, m is layer))
        )
        layer.bias.register_hook(lambda grad: grads.append(grad.item()))
        wrap(layer)(torch.ones(8, 1)).sum().backward()
        assert sorted(fired) == [(i, False) for i in range(4)]
        assert grads == [8]

    @BOTH
    def test_replicas_have_no_parameters_and_do_not_outlive_forward(self, wrap, four):
        """Only copies of weights wait for backward; after it, nothing is elsewhere."""
        born, numbers = [], []

        class Born(Times):
            def forward(self, x):
                born.append(weakref.ref(self))
                numbers.append(len(list(self.parameters())))
                return (x * self.weight).exp()  # so that backward needs the weight

        model = wrap(Born().to("vgpu:0"))
        output = model(torch.ones(8, requires_grad=True))
        gc.collect()
        assert len(born) == 4 and not any(ref() for ref in born)
        assert all(torch.vgpu.memory_allocated(index) for index in range(4))
        output.sum().backward()
        del output
        gc.collect()
        alive = [o for o in gc.get_objects() if type(o) is Born]
        assert (numbers, len(alive)) == ([0] * 4, 1)
        memory = [torch.vgpu.memory_allocated(index) for index in range(4)]
        assert memory[1:] == [0, 0, 0] and memory[0] > 0

    @BOTH
    def test_the_module_must_be_on_the_first_device(self, wrap, four):
        """A module on another device is refused, not moved."""
        with pytest.raises(RuntimeError, match=r"^module (on vgpu:1, not on|must)"):
            wrap(Times().to("vgpu:1"))(torch.ones(8))

    @BOTH
    def test_no_grad_and_the_current_device_reach_the_threads(self, wrap, four):
        """Both are passed on: a new thread would record gradients, on device 0."""
        current, grad_modes = [], []

        class Where(Times):
            def forward(self, x):
                current.append((x.device.index, torch.vgpu.current_device()))
                grad_modes.append(torch.is_grad_enabled())
                return x * self.weight

        model = wrap(Where().to("vgpu:0"))
        with torch.no_grad():
            assert not model(torch.ones(8)).requires_grad
        assert model(torch.ones(8)).requires_grad
        assert grad_modes == [False] * 4 + [True] * 4
        assert set(current) == {(i, i) for i in range(4)}

    @BOTH
    def test_an_error_in_a_replica_reaches_the_caller(self, wrap, four):
        """The caller gets the error with its message."""

        class Fixed(Times):
            def forward(self, x):
                return x * self.weight + torch.ones(len(x), device="vgpu:0")

        with pytest.raises(RuntimeError, match="two devices, vgpu:1 and vgpu:0"):
            wrap(Fixed().to("vgpu:0"))(torch.ones(8))

    @BOTH
    def test_packed_sequences_need_a_total_length(self, wrap, four):
        """Without it each replica pads only to the longest sequence of its shard."""

        class Packed(nn.Module):
            def __init__(self, length):
                super().__init__()
                self.lstm, self.length = nn.LSTM(1, 2, batch_first=True), length

            def forward(self, x, lengths):
                self.lstm.flatten_parameters()
                pack = nn.utils.rnn.pack_padded_sequence
                y = self.lstm(pack(x, lengths.cpu(), batch_first=True))[0]
                pad = nn.utils.rnn.pad_packed_sequence
                return pad(y, batch_first=True, total_length=self.length)[0]

        x, lengths = torch.randn(4, 5, 1), torch.tensor([5, 4, 3, 2])
        with pytest.raises(RuntimeError, match="Expected size 5 but got size 3"):
            wrap(Packed(None).to("vgpu:0"), 2)(x, lengths)
        net = Packed(5)
        with torch.no_grad():
            whole = net(x, lengths)
        cut = wrap(net.to("vgpu:0"), 2)(x, lengths)
        torch.testing.assert_close(cut.cpu(), whole)

    def test_output_device(self, four):
        """Outputs are gathered on the first device, or on the one that is named."""
        net = Times().to("vgpu:0")
        devices = ["vgpu:0", "vgpu:3"]
        assert str(ch2.MiniDataParallel(net, devices)(torch.ones(4)).device) == "vgpu:0"
        model = ch2.MiniDataParallel(net, devices, "vgpu:2")
        assert str(model(torch.ones(4)).device) == "vgpu:2"
        assert {index for index, _ in net.seen} == {0, 3}


def moved(num_devices: int) -> list[tuple[int, int]]:
    """Count what each virtual GPU sent to and received from the others."""
    counts = [[0, 0] for _ in range(num_devices)]
    for event in vgpu.events():
        if event.source and "cpu" not in (event.source, event.target):
            counts[int(event.source[-1])][0] += event.num_bytes
            counts[int(event.target[-1])][1] += event.num_bytes
    return [tuple(count) for count in counts]


class TestBytes:
    """The page's formula gives the bytes that are really moved."""

    @BOTH
    @settings(max_examples=10, deadline=None)
    @given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 40))
    def test_the_law(self, wrap, num_devices, per_device, features):
        """It counts parameters, buffers and outputs in one training step."""
        with vgpu.plugged_in(4):
            net = nn.Sequential(nn.Linear(3, features), nn.BatchNorm1d(features))
            net = net.eval().to("vgpu:0")  # a batch of one has no variance
            size = num_devices * per_device
            model = wrap(net, num_devices)
            vgpu.clear_events()
            model(torch.ones(size, 3)).sum().backward()
            law = step_bytes(
                num_devices,
                sum(p.nbytes for p in net.parameters()),
                size * features * 4,
                sum(b.nbytes for b in net.buffers()),
            )
            assert moved(num_devices) == law

    def test_a_ring_never_sends_twice_the_bytes(self):
        """DataParallel's first device sends the bytes W - 1 times."""
        for world_size in range(1, 65):
            assert ring_bytes(world_size, 1000) < 2000
            first = step_bytes(world_size, 1000, 0)[0]
            assert first == ((world_size - 1) * 1000,) * 2
            # All ranks of a ring send as much in total as DataParallel does.
            total = sum(sent for sent, _ in step_bytes(world_size, 1000, 0))
            assert total == pytest.approx(world_size * ring_bytes(world_size, 1000))

    def test_refuses_what_cannot_be(self):
        """An output that can't be cut evenly, or zero ranks, raises ValueError."""
        with pytest.raises(ValueError, match="no even cut"):
            step_bytes(3, 100, 10)
        with pytest.raises(ValueError, match="at least 1"):
            ring_bytes(0, 10)


def test_the_picture_names_what_it_draws():
    """It is a labeled SVG, and all its rows need as many devices as the first."""
    picture = steps("title", [("cut", [[("a", 0)], [("<b>", 1)]])])
    assert repr(picture).splitlines()[-1].split() == ["cut", "a", "<b>"]
    html = picture._repr_html_()
    assert 'role="img"' in html and 'aria-label="title; ' in html
    assert "--rank-0" in html and "--rank-1" in html and html.count("<b>") == 1
    with pytest.raises(ValueError, match="boxes for 1 devices"):
        steps("title", [("one", [[]]), ("two", [[], []])])


class TestWithoutAGpu:
    """The real class does on a CPU what the page says."""

    @pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
    def test_the_real_class_passes_through(self):
        """One call gets the whole batch, whatever the device_ids."""
        net = Times()
        nn.DataParallel(net, device_ids=[0, 3])(torch.ones(8))
        assert net.seen == [(None, 8)]

    @pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
    def test_its_parts_fail(self):
        """Its functions need a GPU, and each fails in its own way without one."""
        x, net = torch.ones(4, 1), nn.Linear(1, 1)
        # In turn the words of a CPU build and of a CUDA build.
        words = "no attribute '_scatter'|Found no NVIDIA driver"
        with pytest.raises((AttributeError, RuntimeError), match=words):
            nn.parallel.scatter(x, [0, 1])
        with pytest.raises(AssertionError, match="Broadcast function not implemented"):
            nn.parallel.replicate(net, [0, 1])
        with pytest.raises(AssertionError, match="Gather function not implemented"):
            nn.parallel.gather([x, x], 0)


@pytest.mark.skipif(
    torch.accelerator.device_count() < 2, reason="the real class needs two GPUs"
)
def test_on_real_gpus_as_torch():
    """Both classes train alike on real GPUs."""
    ours = ch2.train(ch2.parse_args(STEPS))
    theirs = ch2.train(ch2.parse_args([*STEPS, "--real"]))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


class TestFlags:
    """Devices are found or named, and bad input gets one sentence."""

    @pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
    def test_the_cpu_twice_by_default(self):
        """The default needs no GPU, so the script runs anywhere."""
        assert ch2.parse_args([]).devices == [torch.device("cpu")] * 2

    def test_all_gpus_if_there_are_several(self, four):
        """The default is all GPUs; naming some takes only those."""
        assert list(map(str, ch2.parse_args([]).devices)) == [
            f"vgpu:{index}" for index in range(4)
        ]
        named = ch2.parse_args(["--devices=vgpu:0,vgpu:3"]).devices
        assert [device.index for device in named] == [0, 3]

    def test_one_gpu_is_no_reason_to_leave_the_cpu(self, monkeypatch):
        """Two shards on one GPU gain nothing, and MPS is always one GPU."""
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda: torch.device("mps")
        )
        assert ch2.parse_args([]).devices == [torch.device("cpu")] * 2

    @pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
    def test_cuda_devices_are_asked_for_by_index(self, monkeypatch):
        """Two mocked CUDA GPUs are asked for; the CPU build refuses them by name."""
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda: torch.device("cuda")
        )
        with pytest.raises(SystemExit, match=r"^--devices cuda:0,cuda:1 "):
            ch2.parse_args([])

    @pytest.mark.parametrize(
        "flag, sentence",
        [
            ("--epochs=0", "--epochs 0: must be 1 to 65536"),
            ("--devices=cpu,nonsense", "--devices cpu,nonsense cannot be used: "),
            (
                "--devices=",
                "--devices '' cannot be used: Device string must not be empty",
            ),
        ],
    )
    def test_refusals(self, flag, sentence):
        """A bad value is refused in one line that names it."""
        with pytest.raises(SystemExit) as exit:
            ch2.parse_args([flag])
        assert str(exit.value).startswith(sentence)
        assert "\n" not in str(exit.value)

    def test_a_device_that_is_not_plugged_in(self, four):
        """With four virtual GPUs plugged in, the fifth is refused."""
        with pytest.raises(SystemExit, match="vgpu:4 is not plugged in"):
            ch2.parse_args(["--devices=vgpu:0,vgpu:4"])

    def test_as_a_program(self, capsys):
        """The program says which devices it has, then prints a line per epoch."""
        flags = "--epochs=1", "--samples=8", "--devices=cpu,cpu,cpu"
        ch2.train(ch2.parse_args(flags))
        first, second = capsys.readouterr().out.splitlines()
        assert first == "devices: cpu cpu cpu (1 distinct)"
        assert second.startswith("epoch=0 loss=")
