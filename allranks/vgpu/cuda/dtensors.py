"""What DTensor has to be told, once a script makes a mesh of devices.

A DTensor is wherever its local tensor is, and C++ takes that for a CPU tensor. So
``.device`` and ``.to`` ask the local one. Sharding propagation runs each op once on
fake tensors; a fake tensor on cuda would ask C++ for CUDA, and one on the CPU has the
same shapes. The CPU's attention has no rule for sharding, and gets the GPU's: by batch,
or by head. Autocast for cuda, which C++ would apply to a DTensor of CUDA's, is applied
before a function runs.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from allranks.vgpu import autocast
from allranks.vgpu.machine import is_virtual
from allranks.vgpu.patcher import Entry

aten = torch.ops.aten
_make_mesh = DeviceMesh.__init__
_tensor_to = torch.Tensor.to


def mesh_maker(add: Callable[[Iterable[Entry]], None]) -> Callable[..., None]:
    """Return what makes a mesh; before the first one, it adds the patches of DTensor.

    Only a script that shards tensors has to import what they need.
    """
    add_once = functools.cache(lambda: add(patches()))

    def make_mesh(self: DeviceMesh, *args: Any, **kwargs: Any) -> None:
        add_once()
        _make_mesh(self, *args, **kwargs)

    return make_mesh


def device(self: Any) -> torch.device:
    """Return where the local tensor is."""
    return self._local_tensor.device


def to(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Convert dtype or device, of the local tensor."""
    where, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
    if where is None or where.type == self.device.type:
        kwargs = {key: kwargs[key] for key in kwargs if key in ("copy",)}
        return _tensor_to(self, dtype or self.dtype, **kwargs)
    local = self._local_tensor.to(where, dtype or self.dtype, non_blocking)
    return type(self)(local, self._spec, requires_grad=self.requires_grad)


def cpu(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Copy the local tensor to the host."""
    return self.to("cpu")


def cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Copy the local tensor to the current GPU, unless it is on one."""
    return self.to("cuda")


def torch_function(
    cls: type, func: Callable, types: Any, args: tuple = (), kwargs: Any = None
) -> Any:
    """Run a function on DTensors, and let autocast for cuda reach those on a GPU."""
    kwargs, goes_on = kwargs or {}, False
    with torch._C.DisableTorchFunctionSubclass():
        if kwargs.get("out") is None and torch.is_autocast_enabled("cuda"):
            func, args, kwargs, goes_on = autocast.cast(func, args, kwargs)
        if not goes_on:
            return func(*args, **kwargs)
    return func(*args, **kwargs)  # each function in its body comes here again


def _fake(spec: Any) -> torch.Tensor:
    """Return a fake tensor of a sharded one's whole shape, on the CPU."""
    meta = spec.tensor_meta
    where = "cpu" if is_virtual(torch.device(spec.mesh.device_type)) else None
    return torch.empty_strided(
        meta.shape,
        meta.stride,
        dtype=meta.dtype,
        device=where or spec.mesh.device_type,
    )


def _on_the_cpu(make: Callable) -> Callable:
    """Return what makes an op's arguments for fake tensors, with no GPU in them."""

    def run(self: Any) -> dict[str, Any]:
        kwargs = make(self)
        if is_virtual(kwargs.get("device")):
            kwargs = {**kwargs, "device": torch.device("cpu")}
        return kwargs

    return run


def _by_batch_or_head(num_out: int, num_in: int) -> Callable:
    """Return a strategy for an op whose tensors are all sharded alike, or not."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    def strategy(op_schema: Any) -> Any:
        mesh = op_schema.get_mesh_from_args(validate=False)
        alike = [[p] * (num_out + num_in) for p in (Replicate(), Shard(0), Shard(1))]
        return expand_to_full_mesh_op_strategy(
            mesh, op_schema, alike, input_index=num_out
        )

    return strategy


def _register_attention() -> None:
    """Give the CPU's attention a rule for sharding; it stays for good."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    known = DTensor._op_dispatcher.sharding_propagator
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    for op, num_out, num_in, static in ((forward, 2, 3, 3), (backward, 3, 6, 6)):
        if op not in known.op_strategy_funcs:
            strategy = _by_batch_or_head(num_out, num_in)
            known.register_op_strategy(op, strategy, RuntimeSchemaInfo(static))


def patches() -> Iterator[Entry]:
    """Yield owner, name and what takes its place."""
    from torch.distributed.tensor import DTensor, _op_schema

    _register_attention()
    yield DTensor, "device", property(device)
    yield DTensor, "is_cuda", property(lambda self: self.device.type == "cuda")
    yield DTensor, "is_cpu", property(lambda self: self.device.type == "cpu")
    yield DTensor, "__torch_function__", classmethod(torch_function)
    yield DTensor, "to", to
    yield DTensor, "cpu", cpu
    yield DTensor, "cuda", cuda
    yield _op_schema, "_rebuild_tensor_from_dtensor_meta", _fake
    kind = _op_schema.OpSchema
    yield kind, "gen_fake_kwargs", _on_the_cpu(kind.gen_fake_kwargs)
