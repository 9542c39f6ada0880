"""A dry run: one process plays one rank of many, and no numbers are computed.

    python -m allranks.rehearse --dry --world-size 1024 torchrun ... train.py

Everything is as in a rehearsal, its virtual GPUs and NCCL's rules too, except for what
computes and sends. A large tensor is *hollow*: memory that is reserved and never
touched. An op on it runs on ``meta`` tensors, which say what the result looks like. All
other ranks are thought to do what this one does, so a collective is counted, and fills
its result with what this rank brings. Data have their
numbers, on the host and in small tensors of a GPU: a sampler or a loader sees nothing
new.

What comes from a hollow tensor, or from a parameter, is unknown, however small it is.
It stands at 1, which is a loss to log and a norm to divide by, and each line that reads
it is noted.
"""

import atexit
import functools
import math
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import _pytree as pytree

from allranks.backends.nccl import calls, patches
from allranks.backends.nccl.collectives import flat
from allranks.backends.nccl.group import ProcessGroupNCCL
from allranks.rehearse import lines
from allranks.rehearse.imports import when_imported
from allranks.vgpu import kernels, subclasses
from allranks.vgpu.machine import Device, Machine, current
from allranks.vgpu.patcher import Patcher
from allranks.vgpu.tensor import VirtualTensor

aten = torch.ops.aten
LARGE = 2**16  # bytes of floating-point numbers from which a tensor is hollow
LARGE_COUNTS = 2**24  # of whole numbers, which loaders, masks and routers need
ANSWERS_BY_SHAPE = {aten._fused_sdp_choice.default}
CHECKPOINT = "torch.distributed.checkpoint"
SET_NUMBER = "_set_sequence_number_for_group"
RENDEZVOUS = "torch.distributed.rendezvous"
INDEX = aten.index.Tensor  # x[mask], where a mask is as good as its places
HOPED = {"all", "eq", "isfinite", "isreal"}  # questions that are answered by yes
FINDS_NOTHING = "_amp_foreach_non_finite_check_and_unscale_"  # in a GradScaler
_own_run, _own_make = kernels.run, kernels.make
_unknown: set[int] = set()  # storages whose numbers nobody has computed
reads: Counter = Counter()  # by line of the reader's: unknown numbers that it read
_patcher = Patcher()


class NotComputed(RuntimeError):
    """What the script asks for depends on numbers that a dry run does not compute."""


def is_hollow(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor of the host has memory that nobody touches."""
    counts = not (tensor.is_floating_point() or tensor.is_complex())
    return tensor.untyped_storage().nbytes() > (LARGE_COUNTS if counts else LARGE)


def is_unknown(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's numbers were never computed."""
    return tensor.untyped_storage()._cdata in _unknown


def forget(tensor: torch.Tensor) -> None:
    """Note that a tensor's numbers are unknown from now on, as long as it lives."""
    storage = tensor.untyped_storage()
    if storage._cdata not in _unknown:
        _unknown.add(storage._cdata)
        weakref.finalize(storage, _unknown.discard, storage._cdata).atexit = False


def note_read() -> None:
    """Note that the reader's line, and no function of torch, reads unknown numbers."""
    line, _, direct = lines.place()
    if direct:
        reads[line] += 1


# What an op makes


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an op on tensors of the host, or find out what it would make.

    Raises:
        NotComputed: if the shape of the result depends on unknown numbers.
    """
    tensors = [
        leaf
        for leaf in pytree.arg_tree_leaves(*args, **kwargs)
        if isinstance(leaf, torch.Tensor)
    ]
    if func.is_view or torch.Tag.inplace_view in func.tags or func in ANSWERS_BY_SHAPE:
        return _own_run(func, args, kwargs)
    unknown = [tensor for tensor in tensors if is_unknown(tensor)]
    hollow = any(map(is_hollow, tensors))
    if not _returns_tensors(func):  # it reads: .item(), torch.equal, ...
        if not (unknown or hollow):
            return _own_run(func, args, kwargs)
        note_read()
        return _stand_in(func, tensors[0])
    if unknown and torch.Tag.dynamic_output_shape in func.tags and func is not INDEX:
        _refuse(func)
    # One number that stands at 1 is computed with, so that a mean loss is not nan.
    if hollow or any(tensor.numel() > 1 for tensor in unknown):
        return _outline(func, args, kwargs)
    made = _own_run(func, args, kwargs)
    if unknown:
        for tensor in _results(func, args, kwargs, made):
            forget(tensor)
    return made


def _returns_tensors(func: Any) -> bool:
    """Tell whether an op makes tensors, or changes some, and no number."""
    kinds = [str(one.type) for one in func._schema.returns]
    return not kinds or any("Tensor" in kind for kind in kinds)


def _stand_in(func: Any, tensor: torch.Tensor) -> Any:
    """Return the number that an op reads out of an unknown tensor."""
    if func is aten._local_scalar_dense.default and not is_hollow(tensor):
        return _own_run(func, (tensor,), {})
    if func is aten._local_scalar_dense.default:
        return torch.ones((), dtype=tensor.dtype).item()
    return str(func._schema.returns[0].type) == "bool" or 1


def _refuse(func: Any) -> NoReturn:
    name = func.overloadpacket.__name__
    if torch.Tag.dynamic_output_shape not in func.tags:
        raise NotComputed(
            f"torch cannot tell the shape of what {name} makes without computing it, "
            "as it has no kernel for the device meta: rehearse with all ranks, without "
            "--dry"
        )
    raise NotComputed(
        f"the shape of what {name} makes depends on numbers that a dry run does not "
        "compute: keep the shape fixed, as torch.where(mask, x, 0) does, or rehearse "
        "with all ranks, without --dry"
    )


def _outline(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return what an op would make, by running it on tensors of the device meta."""
    given: dict[int, torch.Tensor] = {}  # by the id of its meta tensor
    bases: dict[int, torch.Tensor] = {}  # by the storage of its meta tensor
    if func is INDEX:
        args = (args[0], _places(args[1]))

    def outline(tensor: torch.Tensor) -> torch.Tensor:
        made = aten.empty_strided.default(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
        )
        given[id(made)] = bases[made.untyped_storage()._cdata] = tensor
        alive.append(made)  # or another one may get its id
        return made

    alive: list[torch.Tensor] = []
    meta_args, meta_kwargs = pytree.tree_map_only(torch.Tensor, outline, (args, kwargs))
    if "device" in meta_kwargs:
        meta_kwargs["device"] = torch.device("meta")
    meta_kwargs.pop("pin_memory", None)
    try:
        made = func(*meta_args, **meta_kwargs)
    except NotImplementedError:
        if not func._opname.endswith("_"):
            _refuse(func)
        made = meta_args[0]  # is changed in place, and keeps its shape

    def fill(meta: torch.Tensor) -> torch.Tensor:
        if id(meta) in given:  # changed in place
            return given[id(meta)]
        key = meta.untyped_storage()._cdata
        base = bases.get(key)
        if base is None:  # new memory, which several results may share
            count = meta.untyped_storage().nbytes() // meta.dtype.itemsize
            base = bases[key] = blank((count,), meta.dtype)
        first = base.storage_offset() + meta.storage_offset()
        return base.as_strided(meta.shape, meta.stride(), first)

    made = pytree.tree_map_only(torch.Tensor, fill, made)
    for tensor in _results(func, args, kwargs, made):
        if not is_hollow(tensor):  # what is there may be no number
            tensor.fill_(_guess(func._opname, tensor.dtype))
        forget(tensor)
    return made


def _guess(name: str, dtype: torch.dtype) -> bool:
    """Return 1 for a number, and for a question the answer that all is well."""
    return name in HOPED if dtype == torch.bool else name != FINDS_NOTHING


def _places(indices: Sequence[Any]) -> list[Any]:
    """Return indices with the places that a mask names in place of the mask."""
    found: list[Any] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            found.append(index)
        elif is_unknown(index) or is_hollow(index):
            _refuse(INDEX)
        else:
            found += index.nonzero().unbind(1)
    return found


def _results(
    func: Any, args: Any, kwargs: dict[str, Any], made: Any
) -> Iterator[torch.Tensor]:
    """Yield the tensors that an op has made or changed."""
    schema = func._schema
    changed = []
    if schema.is_mutable:
        for at, argument in enumerate(schema.arguments):
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write:
                changed.append(value)
    for leaf in pytree.tree_leaves((made, changed)):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def blank(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return new memory of unknown contents."""
    try:
        made = aten.empty.memory_format(size, dtype=dtype, device="cpu")
    except RuntimeError:  # Linux promises nobody more than there is, but a sparse file
        num_bytes = math.prod(size) * dtype.itemsize
        with tempfile.NamedTemporaryFile(prefix="dry-run-") as file:
            storage = torch.UntypedStorage.from_file(file.name, True, num_bytes)
        made = aten.empty.memory_format((0,), dtype=dtype, device="cpu")
        made.set_(storage, 0, size)
    forget(made)
    return made


def make(factory: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """Make a tensor of the host as torch.zeros does; a large one is hollow."""
    shaped = {**kwargs, "generator": None} if "generator" in kwargs else kwargs
    try:
        outline = factory(*args, device="meta", **shaped)
    except NotImplementedError:
        return _own_make(factory, args, kwargs)
    if not is_hollow(outline):
        made = _own_make(factory, args, kwargs)
        if made.is_floating_point() and factory._opname.startswith("empty"):
            made.fill_(1)  # what was there before may be no number
        return made
    count = outline.untyped_storage().nbytes() // outline.dtype.itemsize
    return blank((count,), outline.dtype).as_strided(outline.shape, outline.stride())


def clone(
    tensor: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format
) -> torch.Tensor:
    """Return a copy of a tensor of the host; of a large one a hollow tensor."""
    return run(aten.clone.default, (tensor,), {"memory_format": memory_format})


def land(tensor: torch.Tensor, machine: Machine) -> torch.Tensor:
    """Return a tensor that came from a GPU; a hollow one stays without numbers."""
    if is_hollow(tensor):
        return VirtualTensor(tensor, machine.host)
    if is_unknown(tensor):
        note_read()
    return tensor


# What is on the host


def new_parameter(
    cls: type, data: Any = None, requires_grad: bool = True
) -> torch.Tensor:
    """Make a parameter, whose numbers are unknown from its beginning.

    A large one on the host is hollow: so nobody waits for its initialization.
    """
    inner = getattr(data, "_local_tensor", data)  # a DTensor's
    inner = getattr(inner, "_inner", inner)
    if type(inner) is torch.Tensor and inner.is_cpu and inner.is_floating_point():
        forget(inner)
        if inner is data and is_hollow(data):
            data = VirtualTensor(data.detach(), current().host)
    return subclasses.new_parameter(cls, data, requires_grad)


def numpy(self: VirtualTensor, **kwargs: Any) -> Any:
    """Return a hollow tensor of the host as an array; of a GPU's, raise."""
    if not self.is_cpu:
        return _own_numpy(self)
    note_read()
    return self._inner.fill_(1).numpy(**kwargs)


def tolist(self: VirtualTensor) -> Any:
    """Return nested lists, with 1 for what is unknown."""
    if not self.is_cpu:
        return _own_tolist(self)
    note_read()
    return torch.ones(self.shape, dtype=self.dtype).tolist()


def pinned(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """Return a copy in pinned memory; a hollow tensor of the host is as good as one."""
    if isinstance(self, VirtualTensor) and self.is_cpu:
        return self
    return _own_pin(self)


_own_numpy, _own_tolist = VirtualTensor.numpy, VirtualTensor.tolist
_own_pin = torch.Tensor.pin_memory


# The other ranks


class Group(ProcessGroupNCCL):
    """A group of which one rank is there; the others are thought to do what it does.

    Args:
        store: is not needed.
        rank, size: of this process in the group.
        options: as NCCL takes them.
    """

    def __init__(
        self, store: dist.Store, rank: int, size: int, options: Any = None
    ) -> None:
        super().__init__(dist.HashStore(), 0, 1, options)  # gloo's has one rank
        self._place = rank, size

    def rank(self) -> int:
        """Return this process's number in the group."""
        return self._place[0]

    def size(self) -> int:
        """Return how many ranks the group has."""
        return self._place[1]

    def _agree(self, call: calls.Call, what: str, timeout_ms: int) -> None:
        """Do nothing: there is nobody to disagree."""

    def _carry_out(
        self,
        call: calls.Call,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        launch: Callable[[], Any],
    ) -> None:
        """Fill the results with what this rank brings, as far as it is known."""
        rows = [flat(tensor) for tensor in inputs]
        unknown = not rows or any(is_hollow(row) or is_unknown(row) for row in rows)
        for number, output in enumerate(outputs):
            into = flat(output)
            if unknown or is_hollow(into):
                forget(into)
            elif into.data_ptr() != rows[0].data_ptr():
                mine = rows[min(number, len(rows) - 1)][: into.numel()]
                into.copy_(mine.repeat(-(-into.numel() // mine.numel()))[: len(into)])


class _Kind(type):
    """Takes torch's own fake group for one of gloo's."""

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, (dist.ProcessGroupGloo, FakeProcessGroup))


class Gloo(metaclass=_Kind):
    """Makes torch's own fake group in place of gloo's, for tensors of the host."""

    def __new__(cls, store: Any, rank: int, size: int, **kwargs: Any) -> Any:
        return FakeProcessGroup._create_internal(rank, size)


def create_store(*args: Any, **kwargs: Any) -> dist.Store:
    """Return a store that nobody else has to join."""
    return dist.HashStore()


def _mesh_maker(make_own: Callable) -> Callable:
    """Return what makes a mesh, if the world is a multiple of it."""

    @functools.wraps(make_own)
    def make_mesh(self: DeviceMesh, *args: Any, **kwargs: Any) -> None:
        make_own(self, *args, **kwargs)
        world_size = dist.get_world_size()
        if world_size % self.size():
            raise ValueError(
                f"the mesh {tuple(self.mesh.shape)} has {self.size()} ranks, and "
                f"--world-size {world_size} is no multiple of it"
            )

    return make_mesh


# What is left out


def save(*args: Any, **kwargs: Any) -> None:
    """Save nothing, as there are no numbers to save."""


def leave_out_checkpoints(module: ModuleType) -> None:
    """Let torch.distributed.checkpoint neither save nor load."""
    module.save = module.load = module.async_save = save


def install(recorder: Any, num_steps: int, leave: Callable[[int], NoReturn]) -> None:
    """Let a process of a rehearsal compute nothing and wait for nobody.

    Args:
        recorder: of the process.
        num_steps: of the optimizers, after which it ends; 0 for the script's own end.
        leave: ends it.
    """
    global reads
    atexit.unregister(patches.remind)  # it ends before the script can destroy a group
    machine, replicas = recorder.machine, recorder.replicas
    reads = recorder.unknown_reads
    machine.host = Device(-1, 2**63, machine)
    _patcher.apply(
        [
            (kernels, "run", run),
            (kernels, "make", make),
            (kernels, "clone", clone),
            (kernels, "land", land),
            (nn.Parameter, "__new__", staticmethod(new_parameter)),
            (VirtualTensor, "numpy", numpy),
            (VirtualTensor, "tolist", tolist),
            (torch.Tensor, "pin_memory", pinned),
            *(
                (owner, "ProcessGroupNCCL", Group)
                for owner in (dist, distributed_c10d, _distributed_c10d)
            ),
            (distributed_c10d, "ProcessGroupGloo", Gloo),
            (FakeProcessGroup, SET_NUMBER, lambda self: None),
            (sys.modules[RENDEZVOUS], "_create_c10d_store", create_store),
            (DeviceMesh, "__init__", _mesh_maker(DeviceMesh.__init__)),
            (torch, "save", save),
        ]
    )
    if CHECKPOINT in sys.modules:
        leave_out_checkpoints(sys.modules[CHECKPOINT])
    else:
        when_imported(CHECKPOINT, leave_out_checkpoints)

    def end(*_: Any) -> None:
        if replicas.num_steps >= num_steps > 0:
            leave(0)

    register_optimizer_step_post_hook(end)
