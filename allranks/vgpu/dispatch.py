"""How an op on virtual GPUs runs: check the devices, let the CPU do it, log it."""

import math
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from allranks.vgpu import autocast, foreach, generators, kernels, same_device
from allranks.vgpu.machine import Device, is_virtual, kind
from allranks.vgpu.messages import say_once
from allranks.vgpu.new_tensors import NewTensors, enters_torch

aten, functorch = torch.ops.aten, torch._C._functorch
# Functions that take tensors of several devices, because they copy, or need one of
# the tensors on the host, or index with it.
MIXES = {"backward", "grad", "copy_", "__get__", "__set__", "_pack_padded_sequence"}
MIXES |= {"__getitem__", "index", "tensor_split", *same_device.ASSIGNS}
MIXES |= {"broadcast_tensors", "result_type", "is_same_size", "ctc_loss"}
MIXES |= {"_pad_packed_sequence"}
C10D = "torch.distributed.distributed_c10d"  # whose backends check devices themselves
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}  # with batch sizes on the host
LOOKS_UP = {"embedding", "embedding_bag"}
DENSE = (
    "sparse=True is passed over: gradients of an embedding are dense here, with the "
    "same numbers, and take more memory"
)
COPIES = (aten.copy_.default, aten._to_copy.default)

Args, Kwargs = tuple[Any, ...], dict[str, Any]
Op = torch._ops.OpOverload
Special = Callable[[Args, Kwargs], Any]
# Ops that something else carries out, such as a backend of torch.distributed; one that
# returns NotImplemented leaves the call to the CPU.
SPECIAL: dict[Op, Special] = {}


def call(cls: type[torch.Tensor], func: Callable, args: Args, kwargs: Kwargs) -> Any:
    """Run a function of torch's Python API, for __torch_function__."""
    if func is torch._has_compatible_shallow_copy_type:  # nn.Module.to asks
        return isinstance(args[0], torch.nn.Parameter)  # if True, it sets .data
    with torch._C.DisableTorchFunctionSubclass():
        name = getattr(func, "__name__", "")  # which torch.jit's methods lack
        if name in MIXES or getattr(func, "__module__", "") == C10D:
            return _call_mixed(func, args, kwargs)
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        if name.startswith("_foreach_"):
            return foreach.call_by_device(func, args, kwargs)
        if name in LOOKS_UP and kwargs.get("sparse"):
            say_once(DENSE)
            kwargs = {**kwargs, "sparse": False}
        if name in RECURRENT:
            leaves = [x for x in leaves if getattr(x, "dtype", 0) != torch.int64]
        if getattr(func, "namespace", "") != "prims":  # which meta tensors prepare
            same_device.check(leaves, numbers=name not in same_device.STRICT)
        goes_on = False
        if kwargs.get("out") is None and torch.is_autocast_enabled(kind()):
            func, args, kwargs, goes_on = autocast.cast(func, args, kwargs)
        if not goes_on:
            home = next((x._home for x in leaves if isinstance(x, cls)), None)
            if not torch.is_autocast_enabled("cpu"):
                return _call_here(cls, home, func, args, kwargs)
            with autocast.cpu_off():
                return _call_here(cls, home, func, args, kwargs)
    return func(*args, **kwargs)  # each function in its body comes here again


def _call_mixed(func: Callable, args: Args, kwargs: Kwargs) -> Any:
    """Run a function that takes tensors of several devices, within its limits."""
    name = func.__name__
    if name == "__getitem__" or name in same_device.ASSIGNS:
        named = [kwargs[key] for key in ("indices", "values") if key in kwargs]
        tensor, index, *value = [*args, *named][:3]
        if name.startswith("index_put"):
            index = tuple(index)
        if not functorch.is_functorch_wrapped_tensor(tensor):
            same_device.check_indices(tensor, index, *value)
    elif func is torch._VF._pack_padded_sequence and args[1].device.type != "cpu":
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, but got "
            f"{args[1].dim()}D {args[1].device} tensor"
        )
    elif func is torch._VF._pad_packed_sequence:
        return _PadPacked.apply(*args)
    return func(*args, **kwargs)


@enters_torch
def _call_here(
    cls: type[torch.Tensor],
    home: Device | None,
    func: Callable,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """Run a function whose tensors, also those that C++ makes, are on one device."""
    if isinstance(func, types.FunctionType):
        return func(*args, **kwargs)
    where = kwargs.get("device")
    others = {key: value for key, value in kwargs.items() if key != "device"}
    with NewTensors(cls, lambda: home):
        attend = kernels.ATTENTION.get(getattr(func, "__name__", ""))
        if attend is not None:
            return attend(func, args, kwargs)
        made = func(*args, **others)
    if where is None:
        return made
    return pytree.tree_map_only(cls, lambda tensor: tensor._settle(where), made)


class _PadPacked(torch.autograd.Function):
    """Run _pad_packed_sequence, whose C++ makes its result on the host first."""

    @staticmethod
    def forward(
        ctx: Any, data: torch.Tensor, *args: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            inner = data._inner.detach().requires_grad_()
            padded, lengths = torch._VF._pad_packed_sequence(inner, *args)
        home, made = data._home, padded.detach()
        ctx.way_back, ctx.home = (padded, inner), home
        home.machine.compute(home, "pad", made.shape, num_bytes=2 * made.nbytes)
        ctx.mark_non_differentiable(lengths)
        return type(data)(made, home), lengths

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: None) -> tuple:
        (made,) = torch.autograd.grad(*ctx.way_back, grad._inner)
        return type(grad)(made, ctx.home), *[None] * 4


def run(cls: type[torch.Tensor], func: Op, args: Args, kwargs: Kwargs) -> Any:
    """Run one aten op on virtual tensors, for __torch_dispatch__."""
    if func in COPIES:
        return _copy(cls, func, *args, **kwargs)
    if (special := SPECIAL.get(func)) is not None:
        made = special(args, kwargs)
        if made is not NotImplemented:
            return made
    leaves = pytree.arg_tree_leaves(*args, **kwargs)
    tensors = [leaf for leaf in leaves if isinstance(leaf, cls)]
    # If there is a CPU tensor here, torch's own C++ made it in the middle of a function
    # for use with these tensors. What a caller mixes, ``call`` has refused.
    same_device.check(tensors)
    home = tensors[0]._home
    home.machine.check_plugged_in(home)
    if not home.is_host:
        generators.check(kwargs.get("generator"))
    where = kwargs.get("device")
    if is_virtual(where):  # C++ means this device by "cpu"
        home, kwargs = home.machine.device(where), {**kwargs, "device": "cpu"}
    # An op in place returns its argument, which has to be the caller's own object.
    wrappers = {id(tensor._inner): tensor for tensor in tensors}
    inner_args, inner_kwargs = pytree.tree_map_only(
        cls, lambda tensor: tensor._inner, (args, kwargs)
    )
    capture = home.machine.capture
    if capture is not None:
        capture.before(func, inner_args, inner_kwargs)
    with generators.drawing(func, home, inner_args, inner_kwargs) as drawn:
        made = kernels.run(func, inner_args, inner_kwargs)
        drawn += pytree.tree_leaves(made)
    out = pytree.tree_map_only(
        torch.Tensor,
        lambda t: wrappers[id(t)] if id(t) in wrappers else cls(t, home),
        made,
    )
    if func is aten._pack_padded_sequence.default:
        out = (out[0], made[1])  # torch keeps the lengths on the host
    if func._schema.is_mutable:
        for tensor in tensors:
            tensor._follow()  # after transpose_, resize_, an out= of another size
    # A view touches no memory, so it takes no time.
    if not (func.is_view or torch.Tag.inplace_view in func.tags):
        _log(home, func, inner_args, inner_kwargs, made, tensors)
        if capture is not None:
            capture.after(home, func, inner_args, inner_kwargs, made)
    return out


def _log(
    home: Device,
    func: Op,
    args: Args,
    kwargs: Kwargs,
    made: Any,
    tensors: list[torch.Tensor],
) -> None:
    """Log what an op did; a result that is no tensor is copied to the host."""
    outs = [t for t in pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
    shape = outs[0].shape if outs else ()
    # An op reads its inputs and writes its outputs; in place, that is the same memory.
    known = {id(t._inner) for t in tensors}
    num_bytes = sum(t.nbytes for t in tensors)
    num_bytes += sum(t.nbytes for t in outs if id(t) not in known)
    name = func.overloadpacket.__name__
    flops = _count_flops(func, args, kwargs, made)
    # This is .item(): the program has to wait for the number.
    if func is aten._local_scalar_dense.default:
        home.machine.copy(source=home, target=None, shape=shape, num_bytes=num_bytes)
        return
    home.machine.compute(home, name, shape, num_bytes=num_bytes, flops=flops)
    if not outs and made is not None:  # a bool or a number, as of torch.equal
        home.machine.synchronize(home)


def _count_flops(op: Op, args: Args, kwargs: Kwargs, out: Any) -> float:
    """Count an op's arithmetic as torch's FlopCounterMode does, or one per element."""
    counter = flop_registry.get(op._overloadpacket)
    if counter is not None:
        return counter(*args, **kwargs, out_val=out)
    outs = out if isinstance(out, (tuple, list)) else [out]
    return float(sum(math.prod(getattr(o, "shape", ())) for o in outs))


def _noted(where: torch.Tensor, func: Op, raw: list, kwargs: Kwargs) -> torch.Tensor:
    """Run an op on tensors of the host, for a CUDA graph too if one is captured."""
    capture = where._home.machine.capture
    if capture is None:
        return kernels.run(func, raw, kwargs)
    capture.before(func, raw, kwargs)
    made = kernels.run(func, raw, kwargs)
    capture.after(where._home, func, raw, kwargs, made)
    return made


def _copy(cls: type[torch.Tensor], func: Op, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Run copy_ or _to_copy, the two ops that may copy between devices."""
    if func is aten.copy_.default:
        target, source, wait = args[0], args[1], not (args[2:] or [False])[0]
        raw = [t._inner if isinstance(t, cls) else t for t in (target, source)]
        made = _noted(target if isinstance(target, cls) else source, func, raw, {})
        out, given = target, raw[1]
    else:
        source, wait = args[0], not kwargs.get("non_blocking", False)
        where = torch.device(kwargs.pop("device", None) or "cpu")
        given = source._inner
        made = _noted(source, func, [given], kwargs)
        home = source._home
        if is_virtual(where):
            home = home.machine.device(where)
        out = cls(made, home)
    ends = [t._home if isinstance(t, cls) else None for t in (out, source)]
    for end in filter(None, ends):
        end.machine.check_plugged_in(end)
    machine = (ends[0] or ends[1]).machine
    # Within one device it is an op that reads and writes; else it goes over a link.
    if ends[0] is ends[1]:
        machine.compute(ends[0], "copy", out.shape, num_bytes=2 * made.nbytes)
    else:
        machine.copy(ends[1], ends[0], out.shape, made.nbytes, wait, (given, made))
    return out
