"""CUDA graphs: ops that are noted once, in a capture, and run again at each replay.

A capture runs nothing on a GPU. Here its ops run once, so that Python goes on with real
shapes, and what they have changed is put back at its end. A graph knows memory, not
tensors: each op is noted with the storages that it reads and fills. What is still held
when it is replayed gets the new values; what is not lives for the replay only.
"""

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils import _pytree as pytree

from allranks.vgpu import generators, kernels
from allranks.vgpu.cuda.refused import refuse
from allranks.vgpu.machine import Device, Machine, current

_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor as a graph knows it: a piece of some memory."""

    memory: int  # the number of a storage in its graph
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def on(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return the tensor, on some storage."""
        made = torch.empty(0, dtype=self.dtype, device="cpu")
        return made.set_(storage, self.offset, self.size, self.stride)


@dataclass(slots=True)
class Step:
    """An op of a graph, with pieces of memory in place of tensors."""

    home: Device
    func: Callable
    args: Any
    kwargs: Any
    made: list[Piece]
    ends: tuple[int, ...] = ()  # memory that no later step needs


class Capture:
    """What is being noted while a graph is captured."""

    def __init__(self, machine: Machine) -> None:
        self.steps: list[Step] = []
        self.read: dict[int, torch.UntypedStorage] = {}  # which it keeps alive
        self.memory: dict[int, weakref.ref] = {}  # by number, as long as it is held
        self._numbers: dict[int, tuple[int, weakref.ref]] = {}  # by address
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._busy = [(device, device.busy_s) for device in machine.devices]
        states = [generators.default(device) for device in machine.devices]
        self._states = [(each, each.get_state()) for each in states]

    def _number(self, tensor: torch.Tensor, made: bool = False) -> int:
        """Return the number of a tensor's storage in this graph."""
        storage = tensor.untyped_storage()
        known = self._numbers.get(storage._cdata)
        if known is not None and known[1]() is not None:
            return known[0]
        number, here = next(_ids), weakref.ref(storage)
        self._numbers[storage._cdata] = number, here
        self.memory[number] = here
        if not made:
            self.read[number] = storage
        return number

    def _piece(self, tensor: torch.Tensor, made: bool = False) -> Piece:
        view = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        return Piece(self._number(tensor, made), tensor.dtype, *view)

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        """Keep what an op will change, unless the graph itself has made it."""
        if not func._schema.is_mutable:
            return
        for tensor in pytree.arg_tree_leaves(*args, **kwargs):
            if not isinstance(tensor, torch.Tensor):
                continue
            number = self._number(tensor)
            if number in self.read and number not in self._saved:
                raw = torch.empty(0, dtype=torch.uint8, device="cpu")
                raw.set_(tensor.untyped_storage())
                self._saved[number] = raw, raw.clone()

    def after(self, home: Device, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Note an op that has run on tensors of the host.

        Args:
            home: the device that it stands for.
            func: the op.
            args: of it.
            kwargs: of it.
            made: its results.
        """
        given = pytree.tree_map_only(torch.Tensor, self._piece, (args, kwargs))
        outs = [t for t in pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
        pieces = [self._piece(tensor, made=True) for tensor in outs]
        self.steps.append(Step(home, func, *given, pieces))

    def end(self) -> dict[Device, float]:
        """Put everything back; return for how long a replay keeps each device busy."""
        for raw, before in self._saved.values():
            raw.copy_(before)
        self._saved.clear()
        for generator, state in self._states:
            generator.set_state(state)
        seen: set[int] = set()
        for step in reversed(self.steps):
            leaves = pytree.tree_leaves((step.args, step.kwargs))
            used = {x.memory for x in (*leaves, *step.made) if isinstance(x, Piece)}
            step.ends, seen = tuple(used - seen), seen | used
        return {device: device.busy_s - before for device, before in self._busy}


class CUDAGraph:
    """``torch.cuda.CUDAGraph`` for virtual GPUs."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._capture: Capture | None = None
        self._pool = graph_pool_handle()
        self._busy: dict[Device, float] = {}
        self._recorded_exec_ids: set[int] = set()  # which annotations of 2.15 extend

    def capture_begin(
        self,
        pool: Any = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Note all ops from now on.

        Raises:
            RuntimeError: if a capture is under way already.
        """
        machine = current()
        if machine.capture is not None:
            raise RuntimeError("another CUDA graph is being captured: end that first")
        self._pool = pool or self._pool
        machine.capture = self._capture = Capture(machine)

    def capture_end(self) -> None:
        """End the capture; from now on the graph can be replayed."""
        current().capture = None
        self._busy = self._capture.end()

    def instantiate(self) -> None:
        """Do nothing: a graph that is captured can be replayed."""

    enable_debug_mode = instantiate
    capture_end_pre, capture_end_post = capture_end, instantiate  # halves, in 2.15

    def replay(self) -> None:
        """Run what was captured, on the memory of then.

        Raises:
            RuntimeError: if nothing has been captured.
        """
        if self._capture is None or current().capture is not None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding capture")
        memory: dict[int, torch.UntypedStorage] = {}
        with torch.no_grad():
            for step in self._capture.steps:
                self._run(step, memory)
                for number in step.ends:
                    memory.pop(number, None)
        for device, seconds in self._busy.items():
            work = max(0.0, seconds - len(self._capture.steps) * _latency(device))
            if seconds:
                flops = work * device.machine.costs.flops
                device.machine.compute(device, "graph", (), num_bytes=0, flops=flops)

    def _run(self, step: Step, memory: dict[int, torch.UntypedStorage]) -> None:
        def tensor(piece: Piece) -> torch.Tensor:
            here = memory.get(piece.memory) or self._capture.memory[piece.memory]()
            return piece.on(here)

        args, kwargs = pytree.tree_map_only(Piece, tensor, (step.args, step.kwargs))
        with generators.drawing(step.func, step.home, args, kwargs) as drawn:
            made = kernels.run(step.func, args, kwargs)
            drawn += pytree.tree_leaves(made)
        outs = [t for t in pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
        for piece, out in zip(step.made, outs, strict=True):
            held = self._capture.memory[piece.memory]()
            if held is None:
                memory.setdefault(piece.memory, out.untyped_storage())
            elif held._cdata != out.untyped_storage()._cdata:
                piece.on(held).copy_(out)

    def reset(self) -> None:
        """Forget what was captured."""
        self._capture = None

    def pool(self) -> tuple[int, int]:
        """Return the id of the graph's memory pool."""
        return self._pool

    def debug_dump(self, path: str, *, verbose: bool = True) -> None:
        """Write the names of the ops that were captured; 2.15 asks for more or less."""
        with open(path, "w", encoding="utf8") as file:
            steps = self._capture.steps if self._capture else []
            file.writelines(f"{step.func}\n" for step in steps)


for _name in set(dir(torch.cuda.CUDAGraph)) - set(dir(CUDAGraph)):
    if not _name.startswith("_"):  # hooks and handles, more of them in each torch
        setattr(CUDAGraph, _name, refuse(f"torch.cuda.CUDAGraph.{_name}"))


class MemPool:
    """A pool of memory: a number, since memory here is counted without pools."""

    def __init__(self, allocator: Any = None, *args: Any, **kwargs: Any) -> None:
        self.allocator, self.id = allocator, graph_pool_handle()

    def use_count(self) -> int:
        """Return how many use it."""
        return 1

    def snapshot(self, include_traces: bool = True) -> list:
        """Return its segments; there are none of its own."""
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def _latency(device: Device) -> float:
    return device.machine.costs.latency_s


def graph_pool_handle() -> tuple[int, int]:
    """Return the id of a new memory pool."""
    return 0, next(_ids)


def is_capturing() -> bool:
    """Tell whether a graph is being captured."""
    return current().capture is not None


PATCHES = [
    *(
        (owner, function.__name__, function)
        for owner in (torch.cuda, torch.cuda.graphs)
        for function in (CUDAGraph, graph_pool_handle)
    ),
    (torch.cuda.graphs.graph, "default_capture_stream", None),
    (torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", is_capturing),
    (torch._C, "_cuda_isCurrentStreamCapturing", is_capturing),
    *((owner, "MemPool", MemPool) for owner in (torch.cuda, torch.cuda.memory)),
]
