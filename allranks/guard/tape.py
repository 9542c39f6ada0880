"""What a loss is made of: each operation up to backward, and the line that asks for it.

Ranks of one model do the same with other data. So a number that a line multiplies by,
or a tensor that is there in every step, is the same on all of them, wherever it comes
from: an attribute, a global, a criterion, a teacher. The tape sees them where they are
used.
"""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
)

from .frames import beneath, place
from .operations import (
    SCALES,
    Operation,
    Taken,
    divisor,
    flat,
    kept,
    looks_up,
    stands_for_all,
)

MOST = 100_000  # operations of one step
READS = (  # what reads some of a tensor: that is a table, its rows are data
    *("select", "slice", "index", "index_select", "gather", "embedding", "narrow"),
    *("embedding_bag", "unbind", "split", "split_with_sizes", "take", "unfold"),
    *("masked_select", "stack", "cat"),
)
CLASSES = "nll_loss_forward", "nll_loss2d_forward"
GATHERS = "allreduce", "allgather", "all_reduce", "all_gather", "reduce_scatter"


class Tape(TorchDispatchMode):
    """Records the operations between ``start`` and ``stop``; changes nothing.

    It keeps no tensor that the program lets go, but for copies of small ones.

    Args:
        model: its parameters are compared elsewhere, and are left out here.
    """

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model, self.entered, self.on = model, False, False
        self.fetches = False
        self.clear()

    def clear(self) -> None:
        """Forget what was recorded."""
        self.operations: list[Operation] = []
        self.roots: dict[int, int] = {}  # where a backward began, and from what
        self.storages: dict[int, StorageWeakRef] = {}  # so that no number comes twice
        self.made: set[int] = set()  # in this step, or brought by the loader
        self.tables: set[int] = set()  # of which parts were read
        self.summed: set[int] = set()  # over the ranks, in place
        self.gathered = False  # ranks spoke to each other before backward
        self.known = {
            self.key(p)
            for p in self.model.parameters()
            if not isinstance(p, torch.nn.parameter.UninitializedParameter)
        }

    def start(self, batch: list | None = None) -> None:
        """Go on recording; ``batch`` is what the loader has brought, once it has."""
        if not self.entered:
            self.__enter__()
        self.entered = self.on = True
        self.fetches = batch is None
        self.made |= {self.key(x) for x in batch or [] if torch.is_tensor(x)}

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
        name = name.strip("_") if "c10d" in space else name.rstrip("_")
        if name == "ones_like" and beneath("_make_grads"):
            self.roots[len(self.operations)] = self.key(args[0])
            return func(*args, **kwargs)
        given = flat((*args, *kwargs.values()))
        ins = [(at, x, self.key(x)) for at, x in given if torch.is_tensor(x)]
        # All this before it runs: it may write into what it takes.
        unseen = "c10d" in space and self._exchanges(space, name, ins)
        summed = any(x.grad_fn is not None and key in self.summed for _, x, key in ins)
        leaves, factors = self._leaves(ins), self._factors(name, ins)
        codes = bool(leaves) and name in ("index", "index_select") and looks_up(ins)
        count = divisor(name, args, ins, factors)
        result = func(*args, **kwargs)
        outs = [x for _, x in flat([result]) if torch.is_tensor(x)]
        if name in CLASSES and args[2:4] == (None, 1):  # no weights, and a mean
            count = outs[1].detach().clone()
        if name in READS:
            self.tables |= {key for *_, key in ins[:1]}
        takes, gives = {key for *_, key in ins}, {self.key(x) for x in outs}
        self.made |= gives - takes
        self.operations.append(
            Operation(
                name,
                *place(),
                self.fetches,
                takes,
                gives,
                leaves,
                factors,
                [(at, x) for at, x in given if type(x) in (int, float)],
                codes,
                unseen,
                summed,
                tuple(outs[0].shape) if outs else (),
                count,
            )
        )
        return result

    def _exchanges(self, space: str, name: str, ins: list) -> bool:
        """Take note if ranks speak to each other; say if autograd ought to know."""
        if not name.startswith(GATHERS):
            return False
        self.gathered = self.gathered or not self.roots
        if not torch.is_grad_enabled():
            return False
        if name.startswith("allreduce"):
            self.summed |= {key for *_, key in ins}
        return space == "c10d" and any(x.grad_fn is not None for _, x, _ in ins)

    def _leaves(self, ins: list) -> list[Taken]:
        """What was there before the step, and is neither a batch nor a parameter."""
        return [
            Taken(at, key, kept(x), x.requires_grad and x.is_leaf)
            for at, x, key in ins
            if key and key not in self.made and key not in self.known
        ]

    def _factors(self, name: str, ins: list) -> list[Taken]:
        """What was made in the step, and scales all samples alike."""
        if name not in SCALES or len(ins) != 2:
            return []
        return [
            Taken(at, key, kept(x), False)
            for (at, x, key), (_, other, _) in zip(ins, ins[::-1], strict=True)
            if key in self.made and stands_for_all(x.shape, other.shape)
        ]

    def used(self) -> list[Operation]:
        """The operations that a loss was computed from, in their order."""
        found, needed = [], set()
        for at in range(len(self.operations), -1, -1):
            needed |= {self.roots[at]} if at in self.roots else set()
            if at < len(self.operations) and needed & self.operations[at].gives:
                found.append(self.operations[at])
                needed |= found[-1].takes
        return found[::-1]
