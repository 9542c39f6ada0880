"""What a loss is made of: each operation up to backward, and the line that asks for it.

Ranks of one model do the same with other data. So a number that a line multiplies by,
or a tensor that is there in every step, is the same on all of them, wherever it comes
from: an attribute, a global, a criterion, a teacher. The tape sees them where they are
used.
"""

import os
import sys
from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
)

OWN = os.path.dirname(__file__) + os.sep
TORCH = os.path.dirname(torch.__file__) + os.sep
LOADER = torch.utils.data.dataloader.__file__
OPTIM = os.path.join(TORCH, "optim") + os.sep
MOST = 100_000  # operations of one step
SMALL = 4096  # elements; a larger tensor that is no parameter is data
READS = (  # what reads some of a tensor: that is a table, its rows are data
    *("select", "slice", "index", "index_select", "gather", "embedding", "narrow"),
    *("embedding_bag", "unbind", "split", "split_with_sizes", "take", "unfold"),
    "masked_select",
)
SCALES = "mul", "div"
GATHERS = "allreduce", "allgather", "all_reduce", "all_gather", "reduce_scatter"


class Taken(NamedTuple):
    """A tensor that an operation takes."""

    argument: int
    storage: int
    tensor: torch.Tensor | None  # a copy, or a parameter; None: it is too large
    trained: bool


class Operation(NamedTuple):
    """One call of one of torch's operators."""

    name: str
    line: str
    loader: object  # the iterator of a DataLoader that fetches, or None
    takes: set[int]  # storages
    gives: set[int]
    leaves: list  # what was there before the step
    factors: list  # what was made in it, and stands for all samples
    numbers: list  # (argument, value): Python's
    shape: tuple  # of the result
    count: torch.Tensor | None  # what a mean is divided by


def place() -> tuple[str, object]:
    """The line of the program that is being run, and the loader that runs it, if any.

    The line is the innermost that is not torch's. It is empty in an optimizer, whose
    settings and state are compared elsewhere.
    """
    frame, line, loader = sys._getframe(2), None, None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OPTIM):
            return "", None
        if file == LOADER and frame.f_code.co_name == "_next_data":
            loader = frame.f_locals.get("self")
        if line is None and not file.startswith((TORCH, OWN, "<frozen")):
            line = f"{os.path.basename(file)}, line {frame.f_lineno}"
        frame = frame.f_back
    return line or "", loader


def beneath(function: str) -> bool:
    """Whether a function of that name is being run."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False


def flat(values) -> list[tuple[int, object]]:
    """Arguments, and those in lists, each with its place."""
    found = []
    for at, value in enumerate(values):
        inner = value if isinstance(value, list | tuple) else [value]
        found += [(at, x) for x in inner]
    return found


class Tape(TorchDispatchMode):
    """Records the operations between ``start`` and ``stop``; changes nothing.

    It keeps no tensor that the program lets go, but for copies of small ones.

    Args:
        model: its parameters are compared elsewhere, and are left out here.
    """

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model, self.entered, self.on = model, False, False
        self.clear()

    def clear(self) -> None:
        """Forget what was recorded."""
        self.operations: list[Operation] = []
        self.roots: dict[int, int] = {}  # where a backward began, and from what
        self.storages: dict[int, StorageWeakRef] = {}  # so that no number comes twice
        self.made: set[int] = set()  # in this step, or brought by the loader
        self.tables: set[int] = set()  # of which parts were read
        self.gathered = False  # ranks spoke to each other before backward
        self.known = {
            self.key(p)
            for p in self.model.parameters()
            if not isinstance(p, torch.nn.parameter.UninitializedParameter)
        }

    def start(self, batch: list = ()) -> None:
        """Go on recording; ``batch`` is what the loader has brought."""
        if not self.entered:
            self.__enter__()
        self.entered = self.on = True
        self.made |= {self.key(x) for x in batch if torch.is_tensor(x)}

    def stop(self) -> None:
        """Stop; leave the stack of modes, unless one that came later is still on it."""
        self.on = False
        if self.entered and _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)
            self.entered = False

    def key(self, tensor: torch.Tensor) -> int:
        """A number for the memory that a tensor lies in; 0 if it has none to see."""
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return 0  # sparse, or of a class of its own
        key = storage._cdata
        if key not in self.storages:
            self.storages[key] = StorageWeakRef(storage)
        return key

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operation, and take note of it unless it is part of backward."""
        kwargs = kwargs or {}
        backward = torch._C._current_graph_task_id() != -1
        if backward or not self.on or len(self.operations) >= MOST:
            return func(*args, **kwargs)
        space, _, name = func._schema.name.partition("::")
        name = name.rstrip("_")
        if name == "ones_like" and beneath("_make_grads"):
            self.roots[len(self.operations)] = self.key(args[0])
            return func(*args, **kwargs)
        if "c10d" in space and name.startswith(GATHERS):
            self.gathered = self.gathered or not self.roots
        given = flat((*args, *kwargs.values()))
        ins = [(at, x, self.key(x)) for at, x in given if torch.is_tensor(x)]
        leaves = [
            Taken(at, key, _kept(x), _trained(x))
            for at, x, key in ins
            if key and key not in self.made and key not in self.known
        ]
        factors = []
        if name in SCALES and len(ins) == 2:
            factors = [
                Taken(at, key, _kept(x), False)
                for (at, x, key), (_, other, _) in zip(ins, ins[::-1], strict=True)
                if key in self.made and stands_for_all(x.shape, other.shape)
            ]
        count = None
        if name == "div" and factors and not ins[1][1].dim():
            count = factors[-1].tensor
        elif name == "div" and len(ins) == 1 and ins[0][1].numel() == 1:
            count = torch.tensor(float(args[1]), device="cpu")
        result = func(*args, **kwargs)
        outs = [x for _, x in flat([result]) if torch.is_tensor(x)]
        if name.startswith("nll_loss") and len(outs) == 2 and args[3] == 1:
            count = outs[1].detach().clone()
        if name in READS:
            self.tables.add(ins[0][2])
        takes, gives = {key for *_, key in ins}, {self.key(x) for x in outs}
        self.made |= gives - takes
        numbers = [(at, x) for at, x in given if type(x) in (int, float)]
        shape = tuple(outs[0].shape) if outs else ()
        self.operations.append(
            Operation(
                name, *place(), takes, gives, leaves, factors, numbers, shape, count
            )
        )
        return result

    def used(self) -> list[Operation]:
        """The operations that a loss was computed from, in their order."""
        found, needed = [], set()
        for at in range(len(self.operations), -1, -1):
            needed |= {self.roots[at]} if at in self.roots else set()
            if at < len(self.operations) and needed & self.operations[at].gives:
                found.append(self.operations[at])
                needed |= found[-1].takes
        return found[::-1]


def stands_for_all(shape: tuple, other: tuple) -> bool:
    """Whether a tensor is broadcast along the first dim of another: the samples'."""
    if len(shape) != len(other):
        return len(shape) < len(other)
    return not shape or shape[0] == 1


def _trained(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and tensor.is_leaf


def _kept(tensor: torch.Tensor) -> torch.Tensor | None:
    if isinstance(tensor, torch.nn.Parameter):
        return tensor
    if tensor.numel() > SMALL or type(tensor) is not torch.Tensor or tensor.is_meta:
        return None
    return tensor.detach().clone()
