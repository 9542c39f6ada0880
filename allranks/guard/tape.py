"""What a loss is made of: each operation up to backward, and the line that asks for it.

Ranks that train one model do the same things with different data. So a number by which
a line multiplies, or a tensor that is used in every step, should be the same on all of
them, wherever it comes from: an attribute, a global, a criterion, a teacher. The tape
sees them where they are used.
"""

import os
import sys
from collections.abc import Iterable
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
)

MOST = 100_000  # operations of one step
SMALL = 4096  # elements; a larger tensor that is no parameter is data
MANY = 10_000  # reads of a gradient in one step
FEW = 16  # entries; a table that small may be longer than the list of labels
SCALES = "mul", "div"
READS = (  # operations that read a part of a tensor, so it is a table of data
    *("select", "slice", "index", "index_select", "gather", "embedding", "narrow"),
    *("embedding_bag", "unbind", "split", "split_with_sizes", "take", "unfold"),
    *("masked_select", "stack", "cat"),
)
LIFTS = "lift_fresh"  # what torch calls when it takes numbers of NumPy's or Python's
COPIES = (  # operations that put values elsewhere, and compute nothing from them
    *("copy", "clone", "cat", "stack", "roll", "zero", "fill", "zeros_like", "detach"),
    *("_to_copy", "index_put", "index_copy", "scatter", "where", "alias", *READS),
)
TABLES = "index", "index_select", "embedding", "gather"
CLASSES = "nll_loss_forward", "nll_loss2d_forward"
GATHERS = "allreduce", "allgather", "all_reduce", "all_gather", "reduce_scatter"
JOINS = "cat", "stack"
USES = "mm", "addmm", "bmm", "t", "view", "transpose", "mul"
RANK = "rank", "main", "master", "leader"
GUARD = os.path.dirname(__file__) + os.sep
TORCH = os.path.dirname(torch.__file__) + os.sep
OPTIM = os.path.join(TORCH, "optim") + os.sep
LOADER = torch.utils.data.dataloader.__file__

Input = tuple[int, torch.Tensor, int]  # place among the arguments, tensor, storage


class Taken(NamedTuple):
    """A tensor that an operation takes."""

    argument: int
    storage: int
    tensor: torch.Tensor | None  # a copy, or a parameter; None if it is too large
    trained: bool


class Operation(NamedTuple):
    """One call of one of torch's operators."""

    name: str
    line: str
    loader: Any  # the iterator of a DataLoader that called it, or None
    fetches: bool  # it happened while epoch() fetched a batch
    takes: set[int]  # storages
    gives: set[int]
    leaves: list[Taken]  # what existed before the step
    factors: list[Taken]  # what was made in it, and is the same for all samples
    numbers: list[tuple[int, int | float]]  # Python's, by argument
    by_label: bool  # it looks up a short table by numbers that come again
    by_class: bool  # it looks up any table by numbers that come again
    makes: bool  # it makes or changes memory, and does not only look at it
    drawn: torch.Tensor | None  # a row for each sample, from a generator of one's own
    unseen: bool  # ranks exchange something that autograd does not see
    summed: bool  # what it takes has a gradient, and was summed over the ranks in place
    shape: tuple[int, ...]  # of the result
    count: torch.Tensor | None  # what a mean is divided by


class GradReads(TorchFunctionMode):
    """Notes where a program asks a gradient for its gradient, which is always None.

    clip_grad_norm_ and its kin do that if they are given gradients, not parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read: list[tuple[torch.Tensor, str]] = []  # gradients, perhaps; lines

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch's."""
        result = func(*args, **(kwargs or {}))
        reads = result is None and func == torch.Tensor.grad.__get__
        if reads and not args[0].requires_grad and len(self.read) < MANY:
            self.read.append((args[0], _place()[0]))
        return result


class Tape(TorchDispatchMode):
    """Records the operations between ``start`` and ``stop``, and changes nothing.

    It keeps no tensor alive that the program releases; of small ones it keeps copies.

    Args:
        model: whose parameters are left out, because they are compared elsewhere.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.entered, self.on = model, False, False
        self.fetches = False
        self.grad_reads, self.unclipped = GradReads(), ""
        self.clear()

    def clear(self) -> None:
        """Forget what was recorded."""
        self.operations: list[Operation] = []
        self.roots: dict[int, int] = {}  # where a backward began, and from which loss
        self.storages: dict[int, StorageWeakRef] = {}  # so that no number is reused
        self.made: set[int] = set()  # in this step, or brought by the loader
        self.tables: set[int] = set()  # of which parts were read
        self.summed: set[int] = set()  # over the ranks, in place
        # What a moving average is: memory computed from what it held before, or from
        # other memory that lasts. A queue is not, for it is overwritten.
        self.blended: set[int] = set()
        self.origins: dict[int, set[int]] = {}  # the lasting memory behind the new
        self.rows: set[int] = set()  # samples, by each of the batch's tensors
        self.codes: dict[str, CodeType] = {}  # of the functions, by line
        self.gathered = False  # whether ranks exchanged something before backward
        self.known = {
            self.key(p)
            for p in self.model.parameters()
            if not isinstance(p, torch.nn.parameter.UninitializedParameter)
        }

    def start(self, batch: list[Any] | None = None) -> None:
        """Record from here on; ``batch`` is what the loader brought, None before."""
        if not self.entered:
            self.__enter__()
            self.grad_reads.__enter__()
        self.entered = self.on = True
        self.fetches = batch is None
        tensors = [x for x in batch or [] if torch.is_tensor(x)]
        self.made |= {self.key(x) for x in tensors}
        self.rows |= {len(x) for x in tensors if x.dim()}

    def stop(self) -> None:
        """Stop recording, and leave the stack of modes unless another is on top."""
        self.on = False
        # Modes are a stack: whoever came later has to leave first. Until then this one
        # stays, and is off.
        tops = _get_current_dispatch_mode(), _get_current_function_mode()
        if self.entered and tops == (self, self.grad_reads):
            self.grad_reads.__exit__(None, None, None)
            self.__exit__(None, None, None)
            self.entered = False
        reads, self.grad_reads.read = self.grad_reads.read, []
        grads = {id(p.grad) for p in self.model.parameters()} if reads else ()
        lines = [line for tensor, line in reads if id(tensor) in grads]
        self.unclipped = lines[0] if lines else self.unclipped

    def key(self, tensor: torch.Tensor) -> int:
        """Return a number for the memory of a tensor; 0 if it has no visible one."""
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return 0  # it is sparse, or of a class of its own
        key = storage._cdata
        if key not in self.storages:
            self.storages[key] = StorageWeakRef(storage)
        return key

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Iterable[type],
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and take note of it unless it is part of backward."""
        kwargs = kwargs or {}
        backward = torch._C._current_graph_task_id() != -1
        if backward or not self.on or len(self.operations) >= MOST:
            return func(*args, **kwargs)
        space, _, name = func._schema.name.partition("::")
        name = name.strip("_") if "c10d" in space else name.rstrip("_")
        if name == "ones_like" and _beneath("_make_grads"):
            self.roots[len(self.operations)] = self.key(args[0])
            return func(*args, **kwargs)
        given = _flat((*args, *kwargs.values()))
        ins = [(at, x, self.key(x)) for at, x in given if torch.is_tensor(x)]
        # All that it takes is noted before it runs, because it may write into that.
        before = self._before(space, name, args, given, ins)
        result = func(*args, **kwargs)
        outs = [x for _, x in _flat([result]) if torch.is_tensor(x)]
        if name in CLASSES and args[2:4] == (None, 1):  # no weights, and a mean
            before["count"] = outs[1].detach().clone()
        takes, gives = {key for *_, key in ins}, {self.key(x) for x in outs}
        new = gives - takes
        self.made |= new
        self._trace(func._schema.is_mutable, name, ins, before["leaves"], new)
        line, code, loader = _place()
        if code is not None:
            self.codes[line] = code
        operation = Operation(
            name=name,
            line=line,
            loader=loader,
            fetches=self.fetches,
            takes=takes,
            gives=gives,
            makes=func._schema.is_mutable or bool(new),
            drawn=self._drawn(name, given, outs),
            shape=tuple(outs[0].shape) if outs else (),
            **before,
        )
        self.operations.append(operation)
        return result

    def _before(
        self,
        space: str,
        name: str,
        args: tuple,
        given: list[tuple[int, Any]],
        ins: list[Input],
    ) -> dict[str, Any]:
        """Return the fields of an operation that tell what it is given."""
        leaves, factors = self._leaves(ins), self._factors(name, ins)
        looks_up = name in TABLES and bool(leaves)
        if name in READS:
            self.tables |= {key for *_, key in ins[:1]}
        return {
            "leaves": leaves,
            "factors": factors,
            "numbers": [(at, x) for at, x in given if type(x) in (int, float)],
            "by_label": looks_up and name in ("index", "index_select") and _labels(ins),
            "by_class": looks_up and _repeats(ins),
            "unseen": "c10d" in space and self._exchanges(space, name, ins),
            "summed": any(
                x.grad_fn is not None and k in self.summed for _, x, k in ins
            ),
            "count": _divisor(name, args, ins, factors),
        }

    def _trace(
        self, writes: bool, name: str, ins: list[Input], leaves: list[Taken], new: set
    ) -> None:
        """Follow memory that lasts into what is computed from it.

        Args:
            writes: whether the operation writes into its first argument.
            name: of the operation.
            ins: the tensors that it takes.
            leaves: those of them that existed before the step.
            new: the memory that it makes.
        """
        old = {taken.storage for taken in leaves}
        # In average = 0.9 * average + 0.1 * x the product comes from memory that lasts,
        # so what is copied back into that memory is a moving average. A queue is
        # written to as well, but not computed from itself.
        behind = old.union(*(self.origins.get(key, ()) for *_, key in ins))
        computes = name not in COPIES
        for key in new:
            self.origins[key] = behind
            if behind and (computes or any(k in self.blended for *_, k in ins)):
                self.blended.add(key)
        if writes and ins:
            key, rest = ins[0][2], [k for *_, k in ins[1:]]
            if computes or any(key in self.origins.get(k, ()) for k in rest):
                self.blended.add(key)
            self.origins[key] = behind | self.origins.get(key, set())

    def _drawn(
        self, name: str, given: list[tuple[int, Any]], outs: list[torch.Tensor]
    ) -> torch.Tensor | None:
        """Return what a generator of one's own drew, with a row for each sample."""
        own = any(isinstance(x, torch.Generator) for _, x in given)
        if not own or not outs or self.fetches or name == "randperm":
            return None  # an order of samples may be the same: the samples are not
        return self.by_sample(outs[0])

    def by_sample(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the head of a tensor if it has a row for each sample, else None."""
        few = not tensor.dim() or len(tensor) not in self.rows or tensor.numel() < 4
        if few or type(tensor) is not torch.Tensor or tensor.is_meta:
            return None
        return tensor.detach().flatten()[:SMALL].clone()

    def _exchanges(self, space: str, name: str, ins: list[Input]) -> bool:
        """Take note of an exchange, and tell whether autograd should have seen it."""
        if not name.startswith(GATHERS):
            return False
        self.gathered = self.gathered or not self.roots
        if not torch.is_grad_enabled():
            return False
        if name.startswith("allreduce"):
            self.summed |= {key for *_, key in ins}
        return space == "c10d" and any(x.grad_fn is not None for _, x, _ in ins)

    def _leaves(self, ins: list[Input]) -> list[Taken]:
        """List what existed before the step, except for batches and parameters."""
        return [
            Taken(at, key, _kept(x), x.requires_grad and x.is_leaf)
            for at, x, key in ins
            if key and key not in self.made and key not in self.known
        ]

    def _factors(self, name: str, ins: list[Input]) -> list[Taken]:
        """List what was made in the step and scales all samples alike."""
        if name not in SCALES or len(ins) != 2:
            return []
        return [
            Taken(at, key, _kept(x), trained=False)
            for (at, x, key), (_, other, _) in zip(ins, ins[::-1], strict=True)
            if key in self.made
            and (stands_for_all(x.shape, other.shape) or self._averages(key, x))
        ]

    def _averages(self, key: int, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is a moving average of something for all samples."""
        return (
            key in self.blended and tensor.dim() == 1 and len(tensor) not in self.rows
        )

    def used(self) -> list[Operation]:
        """Return the operations that a loss was computed from, in their order."""
        # From the last operation to the first: one is needed if it gives what a later
        # one, or a backward that began behind it, takes.
        used, needed = [], set()
        for at in range(len(self.operations), -1, -1):
            needed |= {self.roots[at]} if at in self.roots else set()
            if at < len(self.operations) and needed & self.operations[at].gives:
                used.append(self.operations[at])
                needed |= used[-1].takes
        return used[::-1]


def stands_for_all(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Tell whether a tensor is broadcast along another's first dim, the samples."""
    if len(shape) != len(other):
        return len(shape) < len(other)
    return not shape or shape[0] == 1


def names_rank(code: CodeType | None) -> bool:
    """Tell whether a function mentions the rank, so that it may steer by it."""
    if code is None:
        return False
    words = (*code.co_names, *code.co_freevars, *code.co_varnames)
    return any(word in RANK for name in words for word in name.lower().split("_"))


def cuts(used: list[Operation], size: int) -> list[str]:
    """Return the lines of exchanges that a loss depends on but autograd does not see.

    A sum in place leaves a wrong gradient if it is then divided by ``size``, the number
    of ranks, because backward divides as well, though it has summed nothing. Gathered
    tensors leave a wrong one, too, unless the rank puts back its own part, which is the
    only one with a gradient; then a tensor that was not gathered is joined with those
    that were.
    """
    lines, waiting = [], []  # waiting: lines that gathered, and the memory they filled
    for operation in used:
        for line, gathered in list(waiting):
            if operation.name in JOINS and operation.takes & gathered:
                waiting.remove((line, gathered))
                # What else it joins is the rank's own part, which has a gradient.
                lines += [] if operation.takes - gathered else [line]
            elif operation.name in USES and operation.takes & gathered:
                waiting.remove((line, gathered))
                lines.append(line)
        if operation.unseen and operation.name.startswith(("allgather", "all_gather")):
            waiting.append((operation.line, operation.gives))
        if operation.summed and operation.name in SCALES:
            factors = [value for _, value in operation.numbers]
            if any(value in (size, 1 / size) for value in factors):
                lines.append(operation.line)
    return lines


def _flat(values: Iterable[Any]) -> list[tuple[int, Any]]:
    """List arguments, and those in lists of lists, each with its place."""
    flat = []
    for at, value in enumerate(values):
        deep = isinstance(value, list | tuple)
        flat += [(at, x) for _, x in _flat(value)] if deep else [(at, value)]
    return flat


def _divisor(
    name: str, args: tuple, ins: list[Input], factors: list[Taken]
) -> torch.Tensor | None:
    """Return the divisor of a division, if it is one number."""
    if name != "div":
        return None
    if factors and factors[-1].argument == ins[1][0] and not ins[1][1].dim():
        return factors[-1].tensor
    if len(ins) == 1 and ins[0][1].numel() == 1:
        return torch.tensor(float(args[1]), device="cpu")
    return None


def _labels(ins: list[Input]) -> bool:
    """Tell whether a short table is read by labels, numbers that occur repeatedly."""
    table, index = ins[0][1], ins[-1][1]
    if table.dim() != 1 or not table.is_floating_point():
        return False
    return table.numel() <= max(index.numel(), FEW) and _repeats(ins)


def _repeats(ins: list[Input]) -> bool:
    """Tell whether a table is read by whole numbers of which some come again."""
    index = ins[-1][1]
    if index.is_floating_point() or index.dtype == torch.bool or index.numel() < 2:
        return False
    return index.unique().numel() < index.numel()


def _kept(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a small tensor's copy, or a parameter itself, to look at it later."""
    if isinstance(tensor, torch.nn.Parameter):
        return tensor
    if tensor.numel() > SMALL or type(tensor) is not torch.Tensor or tensor.is_meta:
        return None
    return tensor.detach().clone()


def _place() -> tuple[str, CodeType | None, Any]:
    """Return the line that is being run, its code, and the loader's iterator, if any.

    It is the innermost line that is not torch's. In an optimizer it is "", since its
    settings and state are compared elsewhere.
    """
    frame, line, code, loader = sys._getframe(2), None, None, None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OPTIM):
            return "", None, None
        if file == LOADER and frame.f_code.co_name == "_next_data":
            loader = frame.f_locals.get("self")
        if line is None and not file.startswith((TORCH, GUARD, "<frozen")):
            line = f"{os.path.basename(file)}, line {frame.f_lineno}"
            code = frame.f_code
        frame = frame.f_back
    return line or "", code, loader


def _beneath(function: str) -> bool:
    """Tell whether a function of that name is being run."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False
