"""Memory that others see: pinned, shared with a process, as a storage, by NVML."""

import importlib
import io
import os

import pytest
import torch
import torch.multiprocessing
from torch import nn

from allranks import vgpu
from allranks.vgpu import messages


@pytest.fixture(autouse=True)
def two():
    """Plug in two devices that are called cuda."""
    with vgpu.plugged_in(2, "64 MiB", kind="cuda", card="h100-80") as plugged:
        yield plugged


def test_memory_of_the_host_is_pinned_when_it_is_asked_for():
    """Pinning copies, once; views share it; a GPU's memory cannot be pinned."""
    plain = torch.arange(4.0)
    pinned = plain.pin_memory()
    plain[0] = 9
    assert pinned[0] == 0 and pinned.is_pinned() and not plain.is_pinned()
    assert pinned[1:].is_pinned() and pinned.pin_memory() is pinned
    for made in (
        torch.empty(2, pin_memory=True),
        torch.zeros_like(plain, pin_memory=True),
        torch.tensor([1.0], pin_memory=True),
    ):
        assert made.is_pinned()
    with torch.device("cuda"):
        assert torch.empty(2).is_cuda  # the wrapped functions obey it still
    on_gpu = torch.ones(1, device="cuda")
    assert not on_gpu.is_pinned()
    with pytest.raises(RuntimeError, match=r"cannot pin 'torch\.cuda\.FloatTensor'"):
        on_gpu.pin_memory()


def test_a_storage_says_where_it_is(two):
    """It has an address and a device, and a file of it goes back to its GPU."""
    x = torch.arange(4.0, device="cuda:1")
    storage = x.untyped_storage()
    assert storage.device == torch.device("cuda:1") and storage.is_cuda
    assert storage.data_ptr() == x[0].data_ptr() and storage.nbytes() == 16
    assert str(torch.ones(1).untyped_storage().device) == "cpu"
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert torch.load(file).device == x.device
    assert x.share_memory_() is x and x.is_shared()
    with pytest.raises(NotImplementedError, match="FloatStorage makes no storage"):
        torch.cuda.FloatStorage(3)


def test_old_types_make_convert_and_recognize_tensors():
    """Scripts of before torch.device name a type, or hand it over."""
    made = torch.cuda.FloatTensor([1, 2])
    assert made.is_cuda and torch.cuda.FloatTensor(2, 3).shape == (2, 3)
    assert isinstance(made, torch.cuda.FloatTensor)
    assert not isinstance(made, torch.cuda.LongTensor)
    assert not isinstance(torch.ones(1), torch.cuda.FloatTensor)
    for kind in torch.cuda.HalfTensor, "torch.cuda.HalfTensor":
        for before in made, torch.ones(2):
            assert before.type(kind).type() == "torch.cuda.HalfTensor"
        assert nn.Linear(1, 1).type(kind).bias.is_cuda
    assert made.type(torch.float16).is_cuda
    assert made.type("torch.DoubleTensor").type() == "torch.DoubleTensor"
    assert made.type(torch.IntTensor).device.type == "cpu"
    with pytest.raises(ValueError, match="invalid type"):
        made.type("torch.NoTensor")


@pytest.mark.filterwarnings("ignore:.*set_default_tensor_type")
def test_a_default_type_may_be_of_the_gpu():
    """New tensors are there, until another default is set."""
    try:
        torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        made = torch.ones(1)
        assert made.is_cuda and made.dtype == torch.float64
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.ones(1).type() == "torch.FloatTensor"


def test_nvml_numbers_all_gpus_and_measures_nothing(two, monkeypatch, capsys):
    """What a sensor would tell is 0, and is said to be, once."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(messages, "said", set())
    monkeypatch.delenv("RANK", raising=False)
    held = torch.ones(256, device="cuda")
    pynvml = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in (0, 1)]
    told = [pynvml.nvmlDeviceGetMemoryInfo(handle) for handle in handles]
    assert [info.used for info in told] == [0, held.nbytes]
    assert told[0].total == 64 * 2**20 == told[1].used + told[1].free
    assert pynvml.nvmlDeviceGetName(handles[0]) == "NVIDIA H100 80GB HBM3"
    uuid = pynvml.nvmlDeviceGetUUID(handles[1])
    assert pynvml.nvmlDeviceGetHandleByUUID(uuid) is handles[1]
    assert pynvml.nvmlDeviceGetUtilizationRates(handles[0]).gpu == 0
    assert torch.cuda.temperature() == torch.cuda.power_draw() == 0
    assert torch.cuda.device_memory_used() == held.nbytes
    assert str(os.getpid()) in torch.cuda.list_gpu_processes()
    assert capsys.readouterr().err.count("are not measured") == 1
    with pytest.raises(pynvml.NVMLError, match="Invalid Argument: GPU 2"):
        pynvml.nvmlDeviceGetHandleByIndex(2)
    with pytest.raises(NotImplementedError, match="nvmlDeviceSetFanSpeed is not"):
        pynvml.nvmlDeviceSetFanSpeed(handles[0], 100)
    vgpu.unplug()
    with pytest.raises(ImportError):
        importlib.import_module("pynvml")


def receive(queue, shared) -> None:
    """Change what the parent has sent, and tell what has come."""
    vgpu.plug_in(2, kind="cuda")
    tensor, model = shared.get(), shared.get()
    tensor += 1
    with torch.no_grad():
        model.weight.fill_(7)
    told = [str(tensor.device), torch.cuda.memory_allocated(1)]
    queue.put([*told, type(model.weight) is type(tensor)])


def use(queue) -> None:
    """Use a GPU in a forked process."""
    try:
        torch.ones(1, device="cuda")
    except RuntimeError as error:
        queue.put(str(error))


def test_a_tensor_goes_to_another_process_which_shares_it():
    """A queue carries tensors and models of GPUs, and the memory is one."""
    context = torch.multiprocessing.get_context("spawn")
    queue, shared = context.Queue(), context.Queue()
    model, tensor = nn.Linear(2, 2).cuda(), torch.zeros(3, device="cuda:1")
    child = context.Process(target=receive, args=(queue, shared))
    child.start()
    shared.put(tensor)
    shared.put(model)
    assert queue.get(timeout=60) == ["cuda:1", 0, True]
    child.join()
    assert tensor.tolist() == [1, 1, 1] and model.weight.tolist() == [[7, 7]] * 2
    with pytest.raises(RuntimeError, match="Cowardly refusing"):
        context.SimpleQueue().put(model.weight * 2)


def test_a_fork_may_not_use_the_gpus_of_its_parent():
    """It gets CUDA's own sentence; without a use before, a fork may."""
    context = torch.multiprocessing.get_context("fork")
    torch.ones(1, device="cuda")
    queue = context.SimpleQueue()
    child = context.Process(target=use, args=(queue,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert queue.get().startswith("Cannot re-initialize CUDA in forked subprocess")
