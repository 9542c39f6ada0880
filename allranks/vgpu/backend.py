"""Virtual GPUs as a device type of torch: plug them in and out.

torch keeps one device type free for backends that are not its own (PrivateUse1). It is
renamed to ``vgpu``, which cannot be undone: after ``unplug`` the name stays, without a
device, as "cuda" does in a CUDA build without GPUs. Everything else is restored.
"""

import functools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from allranks.vgpu import device_module, generators, kernels, machine, patches
from allranks.vgpu.cuda import cards, sync_batch_norm
from allranks.vgpu.machine import Costs, Machine, Where
from allranks.vgpu.patcher import Entry
from allranks.vgpu.tensor import VirtualTensor

NAME = "vgpu"
# Functions with device=... that torch's C++ cannot build from empty virtual tensors.
FACTORIES = [
    "empty.memory_format",
    "empty_strided",
    "empty_permuted",
    "zeros",
    "ones",
    "full",
    "scalar_tensor",
    "eye",
    "eye.m",
    "arange",
    "arange.start",
    "arange.start_step",
    "range",
    "range.step",
    "linspace",
    "logspace",
    "rand",
    "rand.generator",
    "randn",
    "randn.generator",
    "randint",
    "randint.low",
    "randint.generator",
    "randint.low_generator",
    "randperm",
    "randperm.generator",
    "normal.float_float",
    "tril_indices",
    "triu_indices",
    "fft_fftfreq",
    "fft_rfftfreq",
    "hann_window",
    "hann_window.periodic",
    "hamming_window",
    "hamming_window.periodic",
    "blackman_window",
    "bartlett_window",
    "_efficientzerotensor",
]
# Where C++ looks for these functions: device=1 is a PrivateUse1, whatever it is called.
KEYS = {"vgpu": ["PrivateUse1"], "cuda": ["CUDA", "PrivateUse1"]}
_libraries: list[torch.library.Library] = []  # kernels, while devices are plugged in


class _Guard(torch._C._acc.DeviceGuard):
    """The device guard that torch wants from a backend; it has nothing to switch."""

    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


def _register() -> None:
    """Give the free device type our name, once per process.

    Raises:
        RuntimeError: if another backend has taken it.
    """
    taken = torch._C._get_privateuse1_backend_name()
    if taken == NAME:
        return
    if taken != "privateuseone":
        raise RuntimeError(
            f'torch has one free device type, and here it is "{taken}" already: '
            "virtual GPUs need a process without that backend"
        )
    _setup_privateuseone_for_python_backend(
        NAME, backend_module=device_module.module, device_guard=_Guard()
    )


def _make(
    factory: torch._ops.OpOverload,
    *args: Any,
    device: Where = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Make a tensor on the CPU and put it on a virtual GPU."""
    if machine.kind() == "cuda":
        torch.cuda._lazy_init()  # torch's C++ does so for the first machine only
    home = machine.current().device(device)
    kwargs.pop("pin_memory", None)
    generators.check(kwargs.get("generator"))
    size = next((a for a in args if isinstance(a, (list, tuple))), ())
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    home.require(math.prod(size) * dtype.itemsize, size)  # before the CPU allocates it
    with generators.drawing(factory, home, args, kwargs) as drawn:
        drawn.append(kernels.make(factory, args, kwargs))
    made = VirtualTensor(drawn[0], home)
    if home.machine.capture is not None:
        made_on_cpu = {**kwargs, "device": torch.device("cpu")}
        home.machine.capture.after(home, factory, args, made_on_cpu, drawn[0])
    name = factory.overloadpacket.__name__
    if not name.startswith("empty"):
        home.machine.compute(home, name, made.shape, num_bytes=made.nbytes)
    return made


def plug_in(
    num_devices: int,
    memory: str | int | None = None,
    costs: Costs | None = None,
    kind: str = "vgpu",
    card: str | None = None,
) -> Machine:
    """Give torch virtual GPUs ``vgpu:0``, ``vgpu:1`` …, in place of earlier ones.

    Args:
        num_devices: how many, 1 to 64.
        memory: of each, in bytes, or a size such as "64 MiB". By default it is the
            card's, or 1 GiB without one.
        costs: the declared speeds of the estimated clock.
        kind: "vgpu", or "cuda" for devices that answer to that name everywhere, so that
            scripts for CUDA run unchanged. CUDA_VISIBLE_DEVICES is obeyed then.
        card: the name of a GPU, such as "h100-80", as which they present themselves.

    Raises:
        TypeError: if the number is not an integer.
        ValueError: if the number or the size is impossible, or there is no such kind
            or card.
        RuntimeError: if another backend has taken torch's free device type.
    """
    model = cards.VIRTUAL if card is None else cards.find(card)
    if memory is None:
        memory = model.memory or "1 GiB"
    new = Machine(num_devices, memory, costs or Costs(), kind, model)
    # Before unplug: after a refusal, the earlier devices are still there.
    _register()
    unplug()
    for key in KEYS[kind]:
        library = torch.library.Library("aten", "IMPL", key)
        _libraries.append(library)
        for name in FACTORIES:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, functools.partial(_make, op))
    machine.plugged = new  # before the patches, which ask for it
    more: Iterable[Entry] = ()
    if kind == "cuda":
        from allranks.vgpu.cuda.patches import patches as of_cuda

        _libraries.append(sync_batch_norm.register())
        more = of_cuda(patches.add)
    patches.make(more)
    return new


def unplug() -> None:
    """Remove the virtual GPUs; tensors that were left on them can only be copied."""
    if machine.plugged is None:
        return
    patches.undo()
    machine.plugged.plugged_in = False
    machine.plugged = None
    while _libraries:
        _libraries.pop()._destroy()
