"""Virtual GPUs: placement, memory, errors, log and clock, and nothing left behind."""

import copy
import gc
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.jit import _builtins

from allranks import vgpu
from allranks.base.paths import ROOT
from allranks.vgpu.__main__ import main
from allranks.vgpu.patches import PATCHES
from allranks.vgpu.sizes import from_bytes, to_bytes

MIB = 2**20


@pytest.fixture
def four():
    """Plug in four devices of 16 MiB each."""
    with vgpu.plugged_in(4, memory="16 MiB") as machine:
        yield machine


def shell(*words: str) -> subprocess.CompletedProcess:
    """Run Python in a fresh process."""
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=100, cwd=ROOT
    )


class TestPlacement:
    """Virtual GPUs work as a device type, like torch's own."""

    def test_torch_sees_the_devices(self, four):
        """torch.accelerator and torch.vgpu agree."""
        assert torch.accelerator.is_available()
        assert torch.accelerator.current_accelerator(True) == torch.device("vgpu")
        assert torch.accelerator.device_count() == torch.vgpu.device_count() == 4
        torch.accelerator.set_device_index(2)
        assert torch.vgpu.current_device() == 2
        assert str(torch.ones(1, device="vgpu").device) == "vgpu:2"
        with torch.vgpu.device(1):
            assert torch.ones(1).to("vgpu").get_device() == 1
            with torch.accelerator.device_index(3):
                assert torch.accelerator.current_device_index() == 3
        assert torch.vgpu.current_device() == 2
        seen = []
        thread = threading.Thread(
            target=lambda: seen.append(torch.vgpu.current_device())
        )
        thread.start()
        thread.join()
        assert seen == [0], "each thread has its own current device"

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.ones(2, 3).to("vgpu:1"),
            lambda: torch.ones(2, 3).to(1),
            lambda: torch.ones(2, 3).to(torch.ones(1, device="vgpu:1")),
            lambda: torch.ones(2, 3).to(device="vgpu:1", dtype=torch.float64),
            lambda: torch.ones(2, 3).vgpu(1),
            lambda: torch.tensor([[1.0] * 3] * 2, device="vgpu:1"),
            lambda: torch.as_tensor([[1.0] * 3] * 2, device="vgpu:1"),
            lambda: torch.as_tensor(torch.ones(2, 3), device="vgpu:1"),
            lambda: torch.zeros_like(torch.ones(2, 3), device="vgpu:1") + 1,
            lambda: torch.ones(2, 3, device="vgpu:0").new_ones(2, 3, device="vgpu:1"),
            lambda: torch.full((2, 3), 1.0, device="vgpu:1"),
            lambda: torch.zeros(1, device="vgpu:1").new_tensor([[1.0] * 3] * 2),
            lambda: torch.eye(3, device="vgpu:1")[:1].expand(2, 3) * 0 + 1,
            lambda: torch.arange(6.0, device="vgpu:1").view(2, 3) * 0 + 1,
            lambda: nn.Linear(3, 2, device="vgpu:1").weight.detach() * 0 + 1,
            lambda: nn.Linear(3, 2).to("vgpu:1").weight.detach() * 0 + 1,
        ],
    )
    def test_every_way_to_a_device(self, four, make):
        """Each of them puts the same values on vgpu:1."""
        tensor = make()
        assert tensor.device == torch.device("vgpu", 1) and tensor.is_vgpu
        assert not tensor.is_cpu and not tensor.is_cuda
        assert tensor.tolist() == [[1.0] * 3] * 2

    @pytest.mark.parametrize("where", ["cpu", "vgpu:1"])
    def test_copy_makes_a_new_tensor(self, four, where):
        """``copy=True`` copies, by keyword or position; else x itself comes back."""
        x = torch.ones(2, device="vgpu:1")
        for new in (x.to(where, copy=True), x.to(where, x.dtype, False, True)):
            assert str(new.device) == where and new.data_ptr() != x.data_ptr()
        assert x.to("vgpu:1") is x and x.to("vgpu:1", x.dtype, True) is x

    def test_set_default_device_and_threads(self, four):
        """Factories follow torch's default device, and threads see the devices."""
        with torch.device("vgpu:3"):
            assert torch.tensor([1.0]).get_device() == torch.ones(1).get_device() == 3
        found = []
        thread = threading.Thread(
            target=lambda: found.append(torch.arange(3, device="vgpu:2") + 1)
        )
        thread.start()
        thread.join()
        assert found[0].tolist() == [1, 2, 3] and found[0].get_device() == 2

    def test_a_parameter_stays_the_same_object(self, four):
        """The parameter stays the same object, so an earlier optimizer still works."""
        net = nn.Linear(3, 2)
        weight = net.weight
        net.to("vgpu:1").to("vgpu:2")
        assert net.weight is weight and weight.get_device() == 2
        net(torch.ones(1, 3, device="vgpu:2")).sum().backward()
        net.cpu()
        assert net.weight is weight and weight.is_cpu and weight.grad.is_cpu
        assert type(weight) is nn.Parameter

    def test_a_model_moves_while_its_last_loss_is_alive(self, four):
        """A finished graph may still refer to the parameters when they move."""
        net = nn.Linear(3, 2)
        steps = torch.optim.SGD(net.parameters(), 0.1)
        loss = net(torch.ones(1, 3)).sum()
        loss.backward()
        net.to("vgpu:0")
        steps.step()
        net.cpu()
        assert loss.requires_grad and net.bias.grad.tolist() == [1, 1]

    def test_a_second_move_to_the_same_place_changes_nothing(self, four):
        """Hooks on the parameters are still called."""
        net, seen = nn.Linear(2, 1).to("vgpu:0"), []
        net.weight.register_hook(seen.append)
        net.to("vgpu:0")(torch.ones(1, 2, device="vgpu:0")).sum().backward()
        assert len(seen) == 1

    def test_meta_and_the_host_get_tensors_of_their_own(self, four):
        """Shape and dtype survive, and tensors on the host count on no device."""
        x = torch.ones(3, 4, device="vgpu:0")
        away = x.to("meta", torch.float64)
        assert away.shape == (3, 4) and away.dtype == torch.float64 and away.is_meta
        zeros = torch.zeros_like(x, device="cpu")
        del x
        assert torch.vgpu.memory_allocated(0) == 0 and zeros.sum() == 0

    def test_the_shape_follows_what_is_done_in_place(self, four):
        """In-place changes of shape, such as ``transpose_``, show on the tensor."""
        tensor = torch.arange(6, device="vgpu:0").view(2, 3)
        truth = torch.arange(6).view(2, 3)
        assert tensor.t_().shape == truth.t_().shape == (3, 2)
        assert tensor.unsqueeze_(0).stride() == truth.unsqueeze_(0).stride()
        assert tensor.tolist() == truth.tolist()

    def test_a_device_is_honoured_inside_of_torch_too(self, four):
        """Torch's own Python finds the named device, also where no hook is called."""
        x = torch.ones(2, device="vgpu:0")
        with torch._C.DisableTorchFunctionSubclass():
            made = [x.new_zeros(2, device=f"vgpu:{i}") for i in range(2)]
        assert [m.get_device() for m in made] == [0, 1]
        assert all(type(m._inner) is torch.Tensor for m in made)

    def test_a_data_loader_may_pin(self, four):
        """Code for GPUs pins memory; here pin_memory=True changes nothing."""
        data = torch.utils.data.TensorDataset(torch.arange(4))
        loader = torch.utils.data.DataLoader(data, 2, pin_memory=True)
        assert [x.to("vgpu:0").tolist() for (x,) in loader] == [[0, 1], [2, 3]]

    def test_a_tensor_shows_its_device(self, four):
        """repr, format and type name the device as for a GPU."""
        tensor = torch.ones(2, device="vgpu:1", requires_grad=True)
        assert repr(tensor) == "tensor([1., 1.], device='vgpu:1', requires_grad=True)"
        total = tensor.sum()
        assert repr(total) == "tensor(2., device='vgpu:1', grad_fn=<SumBackward0>)"
        assert f"{total:.2f}" == "2.00" and tensor.type() == "torch.vgpu.FloatTensor"


class TestErrors:
    """What fails on GPUs fails here with the same message."""

    @pytest.mark.parametrize(
        ("first", "second", "op"),
        [
            ("vgpu:0", "vgpu:1", torch.add),
            ("vgpu:1", "vgpu:0", torch.matmul),
            ("cpu", "vgpu:1", torch.mul),
            ("vgpu:0", "cpu", lambda a, b: a.add_(b)),
            ("vgpu:0", "cpu", lambda a, b: torch.cat([a, b])),
            ("vgpu:0", "vgpu:2", nn.functional.linear),
            ("vgpu:0", "cpu", nn.functional.mse_loss),
            ("vgpu:0", "vgpu:1", lambda a, b: torch.where(a > 0, a, b)),
            ("cpu", "vgpu:1", lambda a, b: nn.LSTM(2, 2).to("vgpu:1")(a)),
            ("vgpu:0", "cpu", lambda a, b: nn.GRU(2, 2)(a)),
        ],
    )
    def test_mixed_devices_raise_torchs_sentence(self, four, first, second, op):
        """The message names both devices, in the order of the arguments."""
        a, b = torch.ones(2, 2, device=first), torch.ones(2, 2, device=second)
        expected = f"at least two devices, {first} and {second}!"
        with pytest.raises(RuntimeError, match=expected):
            op(a, b)

    def test_what_may_mix(self, four):
        """Numbers, copy_ and indices on the host may mix, as on CUDA."""
        a = torch.zeros(2, 2, device="vgpu:0")
        assert (a + torch.tensor(2.0)).sum().item() == 8
        a.copy_(torch.ones(2, 2))
        a.copy_(torch.full((2, 2), 3.0, device="vgpu:1"))
        a[torch.tensor([1])] = torch.full((1, 2), 4.0, device="vgpu:0")
        b = torch.zeros(2, 2)
        b.copy_(a)
        assert b.tolist() == [[3, 3], [4, 4]]

    @pytest.mark.parametrize(
        ("do", "says"),
        [
            (
                lambda: torch.ones(1, device="vgpu:4"),
                "vgpu:4 is not plugged in: 0 to 3",
            ),
            (lambda: torch.ones(1).to("vgpu:9"), "vgpu:9 is not plugged in"),
            (lambda: torch.vgpu.set_device(-1), "vgpu:-1 is not plugged in"),
            (lambda: torch.ones(1, device="vgpu").numpy(), "Use Tensor.cpu"),
            (
                lambda: torch.ones(1, device="vgpu").cuda(),
                "not compiled with CUDA|no NVIDIA driver",  # as torch was built
            ),
            (
                lambda: torch.ones(1, device="vgpu").pin_memory(),
                "only dense CPU tensors",
            ),
            (
                lambda: torch.ones(1, device="vgpu").__dlpack__(),
                "from_dlpack of a tensor on vgpu:0 needs",
            ),
            (
                lambda: torch.arange(9)[torch.tensor([1], device="vgpu")],
                "indices should be either on cpu or on the same device",
            ),
            (
                lambda: setattr(torch.ones(1, device="vgpu"), "grad", torch.ones(1)),
                "different device: it is on cpu, and the tensor on vgpu:0",
            ),
            (lambda: torch.eye(2, device="vgpu").to_sparse(), "no torch.sparse_coo"),
        ],
    )
    def test_what_cannot_work_says_so(self, four, do, says):
        """The error is one sentence, and nothing crashes."""
        with pytest.raises((RuntimeError, TypeError, AssertionError), match=says):
            do()

    @pytest.mark.parametrize(
        ("count", "memory", "says"),
        [
            (0, "1 GiB", "plug in 1 to 64"),
            (65, "1 GiB", "plug in 1 to 64"),
            (2.5, "1 GiB", "give an integer"),
            (2, "lots", "memory 'lots': give bytes"),
            (2, 0, "memory 0: give bytes"),
        ],
    )
    def test_bad_plugs(self, count, memory, says):
        """A bad number or size is refused before anything is changed."""
        with pytest.raises((ValueError, TypeError), match=says):
            vgpu.plug_in(count, memory)
        assert not torch.accelerator.is_available()


class TestMemory:
    """Memory is counted by storage, rounded to 512 bytes, and can run out."""

    @given(st.lists(st.integers(0, 3000), max_size=8))
    def test_allocated_is_the_sum_of_rounded_storages(self, sizes):
        """The sum holds for any sizes, and it is 0 when the tensors are gone."""
        with vgpu.plugged_in(2):
            kept = [torch.empty(n, dtype=torch.uint8, device="vgpu:1") for n in sizes]
            expected = sum(-(-n // 512) * 512 for n in sizes)
            assert torch.vgpu.memory_allocated(1) == expected
            assert torch.accelerator.memory_allocated(1) == expected
            assert torch.vgpu.memory_allocated(0) == 0
            del kept
            assert torch.vgpu.memory_allocated(1) == 0
            assert torch.vgpu.max_memory_allocated(1) == expected
            torch.vgpu.reset_peak_memory_stats(1)
            assert torch.vgpu.max_memory_allocated(1) == 0

    def test_views_cost_nothing_and_keep_their_storage(self, four):
        """A storage is freed with its last view."""
        base = torch.zeros(1024, device="vgpu:0")
        view = base.view(32, 32).T[3:]
        assert torch.vgpu.memory_allocated(0) == 4096
        del base
        assert torch.vgpu.memory_allocated(0) == 4096
        del view
        assert torch.vgpu.memory_allocated(0) == 0

    def test_the_peak_is_the_most_there_ever_was(self, four):
        """The peak does not go down when memory is freed."""
        kept = torch.zeros(1024, device="vgpu:0")
        del kept
        kept = torch.zeros(256, device="vgpu:0")
        assert torch.vgpu.memory_allocated(0) == 1024
        assert torch.vgpu.max_memory_allocated(0) == 4096 and len(kept) == 256

    def test_autograd_holds_what_it_needs_until_backward(self, four):
        """Backward frees the activations, while gradients stay."""
        weight = torch.ones(256, 256, device="vgpu:0", requires_grad=True)  # 256 KiB
        loss = (weight.exp().exp() * 1e-9).sum()
        held = torch.vgpu.memory_allocated(0)
        assert held >= 3 * 256 * 1024, "two results of exp are kept for backward"
        loss.backward()
        del loss
        assert torch.vgpu.memory_allocated(0) == 2 * 256 * 1024

    def test_out_of_memory_names_the_numbers_and_loses_nothing(self, four):
        """An error names the numbers; other devices and tensors stay usable."""
        kept = torch.ones(3 * MIB, device="vgpu:0")  # 12 of 16 MiB
        with pytest.raises(torch.OutOfMemoryError) as error:
            kept + 1
        assert str(error.value) == (
            "vGPU out of memory. Tried to allocate 12.00 MiB. vgpu:0 has a total "
            "capacity of 16.00 MiB of which 4.00 MiB is free. 12.00 MiB is allocated "
            "by PyTorch."
        )
        assert kept.to("vgpu:1")[-1].item() == 1
        del error
        gc.collect()
        assert torch.vgpu.memory_allocated(0) == 12 * MIB
        with pytest.raises(torch.OutOfMemoryError, match="3725"):
            torch.empty(10**12, device="vgpu:1")  # refused before the host allocates

    def test_free_and_total(self, four):
        """mem_get_info counts freed memory as used until the cache is emptied."""
        tensor = torch.ones(MIB, device="vgpu:2")
        assert torch.vgpu.mem_get_info(2) == (12 * MIB, 16 * MIB)
        del tensor
        assert torch.vgpu.mem_get_info(2) == (12 * MIB, 16 * MIB)
        torch.vgpu.empty_cache()
        assert torch.vgpu.mem_get_info(2) == (16 * MIB, 16 * MIB)
        assert torch.vgpu.memory_reserved(2) == 0

    @given(st.integers(1, 10**15))
    def test_sizes_are_read_as_they_are_written(self, num_bytes):
        """A size reads back the same, up to the digits that were written."""
        text = from_bytes(num_bytes).replace("bytes", "B")
        assert abs(to_bytes(text) - num_bytes) <= 0.005 * num_bytes + 1


class TestLog:
    """What moved between devices, and when by the estimated clock."""

    def test_a_copy_is_logged_with_its_bytes_both_ways(self, four):
        """The log has activations forward and gradients back, with their bytes."""
        x = torch.ones(4, 8, device="vgpu:0", requires_grad=True)
        vgpu.clear_events()
        with vgpu.label("there"):
            y = x.to("vgpu:2")
        y.sum().backward()
        ways = [(e.source, e.target, e.num_bytes) for e in vgpu.events() if e.source]
        assert ways == [("vgpu:0", "vgpu:2", 128), ("vgpu:2", "vgpu:0", 128)]
        assert vgpu.events()[0].label == "there" and vgpu.events()[-1].label == ""
        assert repr(vgpu.traffic()).splitlines() == [
            "from    to      copies  bytes",
            "vgpu:0  vgpu:2  1       128",
            "vgpu:2  vgpu:0  1       128",
        ]
        assert {e.op for e in vgpu.events("vgpu:0")} == {"copy"}

    def test_a_narrower_dtype_moves_fewer_bytes(self, four):
        """A tensor is converted before it moves, as CUDA does."""
        vgpu.clear_events()
        torch.ones(8, dtype=torch.float64).to("vgpu:1", torch.float16)
        assert [e.num_bytes for e in vgpu.events() if e.source] == [16]

    def test_an_item_waits_and_counts(self, four):
        """``item()`` copies one number of four bytes to the host."""
        vgpu.clear_events()
        torch.ones(3, device="vgpu:1").sum().item()
        last = vgpu.events()[-1]
        assert (last.source, last.target, last.num_bytes) == ("vgpu:1", "cpu", 4)

    def test_the_estimated_clock_follows_the_declared_costs(self):
        """A product takes time by its flops, a copy by its bytes, in parallel."""
        costs = vgpu.Costs(flops=1e9, memory=1e15, link=1e6, latency_s=0.0)
        with vgpu.plugged_in(2, costs=costs):
            a, b = (torch.ones(100, 100, device=f"vgpu:{i}") for i in range(2))
            vgpu.clear_events()
            a @ a
            b @ b
            a.to("vgpu:1")
            first, second, copied = vgpu.events()
        assert first.end_s - first.start_s == pytest.approx(2 * 100**3 / 1e9)
        assert first.start_s == second.start_s == 0, "the devices do not wait"
        assert copied.start_s == first.end_s
        assert copied.end_s - copied.start_s == pytest.approx(40_000 / 1e6)

    def test_the_program_waits_for_the_host_only(self, four):
        """It waits for blocking copies to and from the host, and for answers."""

        def waits(do) -> bool:
            vgpu.clear_events()
            do()
            return four.host_s == four.devices[0].free_s > 0

        x, y = torch.ones(4, device="vgpu:0"), torch.ones(4)
        assert waits(lambda: y.to("vgpu:0")) and waits(x.cpu) and waits(x[0].item)
        assert waits(lambda: torch.equal(x, x)) and waits(lambda: x.copy_(y))
        assert waits(lambda: (x + x, torch.vgpu.synchronize(0)))
        assert not waits(lambda: y.to("vgpu:0", non_blocking=True))
        assert not waits(lambda: x.copy_(y, non_blocking=True))
        assert not waits(lambda: x.to("vgpu:1")) and not waits(lambda: x + x)

    def test_the_pictures(self, four):
        """The pictures have a row per device and its share of the time, no more."""
        with vgpu.label("forward"):
            torch.ones(64, 64, device="vgpu:1") @ torch.ones(64, 64, device="vgpu:1")
        text = repr(vgpu.timeline("Two devices"))
        assert "vgpu:0  busy 0%: nothing" in text
        assert "vgpu:1  busy 100%: forward" in text
        assert (
            "estimated" in vgpu.timeline().html and "busy 100%" in vgpu.timeline().html
        )
        lines = vgpu.smi().splitlines()
        assert len(lines) == 9 and lines[-1] == "* of the estimated time"
        assert "16MiB |           100% |" in lines[4]
        assert len({len(line) for line in lines[:-1]}) == 1

    def test_costs_that_cannot_be(self):
        """The error names the cost that is not possible."""
        with pytest.raises(ValueError, match="link=0"):
            vgpu.Costs(link=0)


class TestUnplug:
    """Nothing is left when the devices are unplugged."""

    def test_everything_is_as_it_was(self):
        """Each patched name is what it was before, or gone."""
        before = [vars(owner).get(name) for owner, name, _ in PATCHES]
        packages = list(torch.serialization._package_registry)
        with vgpu.plugged_in(2):
            assert [vars(o).get(n) for o, n, _ in PATCHES] != before
        assert [vars(owner).get(name) for owner, name, _ in PATCHES] == before
        assert torch.serialization._package_registry == packages
        assert torch.accelerator.device_count() == 0
        assert torch.accelerator.current_accelerator(check_available=True) is None
        assert nn.DataParallel(nn.Linear(1, 1)).device_ids == []
        with pytest.raises(NotImplementedError):
            torch.ones(1, device="vgpu:0")

    def test_a_tensor_that_was_left_can_be_copied_only(self):
        """The values of a tensor left on a device are not lost."""
        with vgpu.plugged_in(1):
            left = torch.arange(3, device="vgpu:0")
        with pytest.raises(RuntimeError, match="left on vgpu:0 when"):
            left + 1
        assert left.cpu().tolist() == [0, 1, 2] and type(left.cpu()) is torch.Tensor
        with vgpu.plugged_in(1), pytest.raises(RuntimeError, match="left on vgpu:0"):
            left + 1

    def test_without_devices_the_functions_say_what_to_do(self):
        """The error is a sentence, also from torch.vgpu once that exists."""
        with pytest.raises(RuntimeError, match="no virtual GPU is plugged in"):
            vgpu.events()
        with vgpu.plugged_in(1):
            pass
        with pytest.raises(RuntimeError, match="no virtual GPU is plugged in"):
            torch.vgpu.memory_allocated()

    def test_a_fresh_process_shows_no_trace(self):
        """Neither the import nor plugging leaves a trace, except for the name."""
        code = """
            import torch
            def look():
                return [torch.Tensor.to, torch.nn.Module._apply, torch.as_tensor,
                    torch._C._get_privateuse1_backend_name(), sorted(vars(torch._C)),
                    list(torch.serialization._package_registry), hasattr(torch, "vgpu"),
                    torch.accelerator.current_accelerator()]
            before = look()
            from allranks import vgpu
            assert look() == before
            with vgpu.plugged_in(2):
                assert look() != before
            after = look()  # the device type's name stays, and what hangs on it
            assert after[:3] + after[4:6] == before[:3] + before[4:6]
            print("same")
        """
        done = shell("-c", "\n".join(line[12:] for line in code.splitlines()))
        assert done.stdout == "same\n", done.stderr

    def test_another_backend_is_left_alone(self):
        """Torch has one free device type; if another backend has it, we say so."""
        code = (
            "import torch; torch.utils.rename_privateuse1_backend('npu')\n"
            "from allranks import vgpu\n"
            "try: vgpu.plug_in(2)\n"
            "except RuntimeError as error: print(error)\n"
            "print(torch.Tensor.to.__qualname__)"
        )
        done = shell("-c", code)
        assert 'here it is "npu" already' in done.stdout, done.stderr
        assert "virtual GPUs" in done.stdout and "TensorBase.to" in done.stdout


class TestRunner:
    """``python -m allranks.vgpu``: an unchanged script, several devices."""

    def test_runs_a_script_on_virtual_gpus(self, tmp_path):
        """Arguments, __main__ and imports from its folder work; then come the views."""
        (tmp_path / "near.py").write_text("NUMBER = 7\n")
        script = tmp_path / "script.py"
        script.write_text(
            "import sys, torch, near\n"
            "gpu = torch.accelerator.current_accelerator(check_available=True)\n"
            "if __name__ == '__main__':\n"
            "    x = torch.ones(near.NUMBER).to(f'{gpu}:1')\n"
            "    print(x.device, torch.accelerator.device_count(), sys.argv[1:])\n"
        )
        words = ["-m", "allranks.vgpu", "2", "--memory", "64 MiB", "--smi", "--traffic"]
        done = shell(*words, str(script), "--steps", "3")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("vgpu:1 2 ['--steps', '3']\n")
        assert "cpu   vgpu:1  1       28" in done.stdout and "64MiB" in done.stdout

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["2", "no_such.py"], "no_such.py: no such script"),
            (["0", "README.md"], "0 virtual GPUs: plug in 1 to 64"),
            (["2", "--memory", "x", "README.md"], "memory 'x'"),
        ],
    )
    def test_bad_input_is_one_sentence(self, words, says):
        """Python prints it, and exits with 1; there is no traceback."""
        with pytest.raises(SystemExit) as end:
            main(words)
        assert isinstance(end.value.code, str) and "\n" not in end.value.code
        assert end.value.code.startswith(says)


def test_fork_server_and_ranks_are_untouched(four):
    """Live ranks that start while devices are plugged in still run on the CPU."""
    from allranks import Ranks

    with Ranks(2) as ranks:
        assert (
            ranks.run("torch.ones(1).device.type, torch.accelerator.is_available()")
            == [("cpu", False)] * 2
        )


def test_a_deep_copy_counts_twice(four):
    """Memory counts a copy, and is freed with it."""
    net = nn.Linear(512, 512).to("vgpu:3")
    once = torch.vgpu.memory_allocated(3)
    twin = copy.deepcopy(net)
    assert torch.vgpu.memory_allocated(3) == 2 * once == 2 * (512 * 512 * 4 + 2048)
    del twin
    gc.collect()
    assert torch.vgpu.memory_allocated(3) == once


def test_code_that_jit_compiles_may_make_tensors():
    """torch compiles its own optimizers so when they are imported, at any time."""
    with vgpu.plugged_in(1):
        compiled = torch.jit.script(twice)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", ["vgpu", "cuda"])
def test_jit_forgets_what_is_unplugged(kind):
    """It knows functions by address, and others come to lie there."""
    before = dict(_builtins._get_builtin_table())
    with vgpu.plugged_in(1, kind=kind):
        assert _builtins._find_builtin(torch.as_tensor) == "aten::as_tensor"
        assert _builtins._get_builtin_table() != before
    assert _builtins._get_builtin_table() == before


def twice(x: torch.Tensor) -> torch.Tensor:
    """Double a tensor; in a file, since the compiler wants the source."""
    return x * torch.tensor(2.0)
