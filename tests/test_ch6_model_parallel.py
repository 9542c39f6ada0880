"""Chapter 6's first script trains a model on two devices as on one."""

import re

import pytest
import torch
from torch.utils.data import TensorDataset

from allranks import vgpu
from allranks.base.paths import ROOT
from book._ext.runs import records
from scripts import ch5_single, ch6_model_parallel

FLAGS = ["--epochs=2", "--samples=16", "--batch-size=4"]  # 8 steps


@pytest.fixture
def two_gpus():
    """Yield two virtual GPUs for one test."""
    with vgpu.plugged_in(2, memory="256 MiB"):
        yield [torch.device("vgpu", 0), torch.device("vgpu", 1)]


@pytest.fixture(autouse=True, scope="module")
def float64():
    """Use float64, where any difference is a mistake, and one thread for small nets."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)


def run_train(module, flags, place):
    """Run a script's train(); return losses, gradients and weights, a tensor each."""
    make_task, tasks = module.make_task, []

    def keep(num):
        train_set, test_set, net = make_task(num)
        tasks.append(net)
        return train_set, TensorDataset(*test_set[:8]), net

    module.make_task = keep
    try:
        losses = torch.stack(module.train(module.parse_args(flags), place)).cpu()
    finally:
        module.make_task = make_task
    gradients = [p.grad.cpu().flatten() for p in tasks[0].parameters()]
    weights = [p.detach().cpu().flatten() for p in tasks[0].parameters()]
    return losses, torch.cat(gradients), torch.cat(weights)


@pytest.fixture(scope="module")
def whole(float64):
    """Return the same training unsplit, by chapter 5's single process."""
    return run_train(ch5_single, FLAGS, torch.device("cpu"))


def test_split_over_two_devices_is_unsplit(two_gpus, whole, capsys):
    """8 steps give the same losses, last gradients and weights.

    Measured: bit for bit equal.
    """
    split = run_train(ch6_model_parallel, FLAGS, two_gpus)
    assert len(split[0]) == 8
    for one, two in zip(whole, split, strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-10)
    said = capsys.readouterr().out
    assert "first part: 74496 parameters on vgpu:0, " in said
    assert "second part: 84042 parameters on vgpu:1, " in said


@pytest.mark.parametrize("at", [1, 8])
def test_every_split_is_unsplit(at, two_gpus, whole):
    flags = [*FLAGS, f"--split={at}"]
    split = run_train(ch6_model_parallel, flags, two_gpus)
    for one, two in zip(whole, split, strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-10)


def test_on_one_cpu_too(whole):
    devices = [torch.device("cpu")] * 2
    split = run_train(ch6_model_parallel, FLAGS, devices)
    for one, two in zip(whole, split, strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-10)


def test_only_the_boundary_travels_between_the_devices(two_gpus):
    """Activations at the cut travel forward, and as many bytes of gradients back."""
    _, _, net = ch6_model_parallel.make_task(8)
    net = ch6_model_parallel.Split(net, 3, two_gpus)
    vgpu.clear_events()
    output = net(torch.ones(8, 1, 8, 8))
    assert output.device == two_gpus[1]
    output.sum().backward()
    moved = [
        (event.source, event.target, event.num_bytes)
        for event in vgpu.events()
        if event.source is not None
    ]
    boundary = 8 * 128 * 8 * 8 * 8  # samples, channels, pixels, bytes of a float64
    assert moved == [
        ("cpu", "vgpu:0", 8 * 64 * 8),
        ("vgpu:0", "vgpu:1", boundary),
        ("vgpu:1", "vgpu:0", boundary),
    ]


def test_finds_accelerators_or_says_what_is_missing(two_gpus, capsys):
    find = ch6_model_parallel.find_devices
    assert find(2) == two_gpus
    assert find(1) == two_gpus[:1]
    assert capsys.readouterr().out == ""
    vgpu.unplug()
    if not torch.accelerator.is_available():
        assert find(2) == [torch.device("cpu")] * 2
        said = capsys.readouterr().out
        assert said.startswith("2 devices wanted, 1 found: all parts are on cpu.")
        assert "python -m allranks.vgpu 2 scripts/ch6_model_parallel.py" in said


def test_one_gpu_gets_both_parts(monkeypatch, capsys):
    """On a machine with one GPU, both parts lie on it (mocked: CUDA isn't touched)."""
    cuda = torch.device("cuda")
    accelerator = torch.accelerator
    monkeypatch.setattr(accelerator, "current_accelerator", lambda **_: cuda)
    monkeypatch.setattr(accelerator, "device_count", lambda: 1)
    assert ch6_model_parallel.find_devices(2) == [torch.device("cuda:0")] * 2
    assert "all parts are on cuda:0" in capsys.readouterr().out
    monkeypatch.setattr(accelerator, "device_count", lambda: 2)
    devices = [torch.device("cuda:0"), torch.device("cuda:1")]
    assert ch6_model_parallel.find_devices(2) == devices
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--epochs=0"], "--epochs 0: must be 1 to 65536"),
        (["--lr=nan"], "--lr nan: must be 1e-30 to 1e+30"),
        (["--devices=3"], "--devices 3: must be 1 or 2"),
        (["--split=9"], "--split 9: must be 1 to 8"),
        (["--split=0"], "--split 0: must be 1 to 65536"),
    ],
)
def test_refuses_what_cannot_be(flags, message):
    with pytest.raises(SystemExit, match=f"^{re.escape(message)}$"):
        args = ch6_model_parallel.parse_args(["--samples=8", *flags])
        ch6_model_parallel.train(args, [torch.device("cpu")] * 2)


def test_what_does_not_fit_one_device_fits_two():
    """The page's two commands, which are replayed: one fails, one has room."""
    page = records.commands((ROOT / "book" / "ch6_model_parallel.md").read_text("utf8"))
    one, two = (c for c in page if "allranks.vgpu 2 --memory" in c.line)
    assert one.line.endswith(" --devices 1") and "--devices" not in two.line
    assert (one.exit_code, two.exit_code) == (1, 0)
    said, done = (records.read(ROOT / "book" / "_runs", c) for c in (one, two))
    said = " ".join(said.split())
    start = "vGPU out of memory. Tried to allocate 3.00 MiB. "
    assert said.startswith(start) and said.endswith(" Try --devices 2."), said
    peaks = [float(m) for m in re.findall(r"([\d.]+) MiB at its peak", done)]
    assert len(peaks) == 2 and max(peaks) < 20 < sum(peaks)


def test_the_memory_of_the_unsplit_net_is_what_the_page_says():
    """It is the peak of forward and backward with all nine layers on one device."""
    page = (ROOT / "book" / "ch6_model_parallel.md").read_text("utf8")
    said = re.search(r"one device alone would\s+need\s+([\d.]+)\s+MiB", page)[1]
    torch.set_default_dtype(torch.float32)
    try:
        with vgpu.plugged_in(1):
            train_set, _, net = ch6_model_parallel.make_task(192)
            x, y = (part.to("vgpu:0") for part in train_set[:])
            torch.nn.functional.cross_entropy(net.to("vgpu:0")(x), y).backward()
            peak = torch.vgpu.max_memory_allocated(0) / 2**20
    finally:
        torch.set_default_dtype(torch.float64)
    assert (len(net), f"{peak:.1f}") == (9, said)
