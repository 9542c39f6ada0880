"""``allranks.guard`` inside of a rehearsal, for each model that DDP or FSDP2 trains.

It looks when backward has ended and when the optimizer is about to step, and notes what
it finds: the script goes on as if it were not there. It reads a GPU's memory where it
is, on the host, so it takes none of it, and no copy counts. Its messages go over
sockets of its own, and if a rank does not come to a check, the guard ends, not the job.
"""

import datetime
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.fsdp import FSDPModule

from allranks.guard import GuardError, digests
from allranks.guard.exchange import APART, SAME_NUMBERS, Exchange
from allranks.guard.observer import Observer
from allranks.guard.wrappers import other_reduction
from allranks.rehearse import lines
from allranks.rehearse.records import GUARD, GuardFinding, GuardNotes

# The laws look at samples and devices; a loss is looked at in epoch() only
SKIP = "data", "devices", "loss"
PATIENCE_S = 20.0
WORDS = {  # of the guard's API, and what they are in a rehearsal
    'skip=("randomness",)': f"--allow {SAME_NUMBERS}",
    "after watch.step()": "after the check",
    ", as watch.mean does": "",
}
_counts: Counter = Counter()  # of the exchanges that groups of ranks have made
_sockets: list[Any] = []  # never freed, because gloo's destructor may wait for ever


class Aside(Exchange):
    """Sends messages past torch.distributed, so no name or number of its changes."""

    def connect(self, timeout: datetime.timedelta) -> None:
        """Join the other ranks over gloo, under a name that was never used before."""
        name = f"guard {self.ranks}"
        _counts[name] += 1
        store = dist.PrefixStore(f"{name} {_counts[name]}", c10d._get_default_store())
        self.group = dist.ProcessGroupGloo(store, self.rank, self.size, timeout)
        self.device = torch.device("cpu")
        _sockets.append(self.group)

    def all_gather(self, everything: list[torch.Tensor], own: torch.Tensor) -> None:
        self.group.allgather([everything], [own]).wait()

    def all_reduce(self, values: torch.Tensor) -> None:
        self.group.allreduce([values]).wait()

    def close(self) -> None:
        """Leave the sockets open, as another rank may still read from them."""
        self.group, self.size = None, 1

    def warn(self, sentence: str) -> None:
        """Keep a remark for the report; that a hash() differs is none, as all do."""
        if sentence not in self.remarks and "hash is not the same" not in sentence:
            self.remarks.append(sentence)


class Guards:
    """The guards of this process; ``notes`` has what they have found.

    Args:
        models: returns those that DDP or FSDP2 trains, each rank with its own data.
        optimizers: all optimizers, in the order in which they were made.
        patience_s: how long a check waits for a rank that does not come.
    """

    def __init__(
        self,
        models: Callable[[], list[nn.Module]],
        optimizers: Iterable[torch.optim.Optimizer],
        patience_s: float,
    ) -> None:
        self.models, self.optimizers = models, optimizers
        self.patience_s = min(patience_s, PATIENCE_S)
        # By model: None for one whose guard has ended.
        self.observers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self.notes = GuardNotes()
        self.busy = False  # whether a guard sends, and so may bring on other hooks
        digests.read_with(lambda tensor: getattr(tensor, "_inner", tensor))

    def after_backward(self) -> None:
        """Take note that a backward pass has ended."""
        for model in tuple(self.observers):
            if (observer := self._observer(model)) is not None:
                with self._quietly(model):
                    observer.after_backward()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Let each guard of the optimizer's model check what is due."""
        if self.busy or not dist.is_initialized() or dist.get_world_size() < 2:
            return
        in_backward = "backward" in lines.place().doing
        for model in self._trained(_parameter_ids([optimizer])):
            if model not in self.observers:
                self.observers[model] = None
                wrapper = "FSDP2" if isinstance(model, FSDPModule) else "DDP"
                self.notes.models.append(wrapper)
                with self._quietly(model):
                    self._begin(model, optimizer, in_backward)
            if (observer := self._observer(model)) is not None:
                with self._quietly(model):
                    observer.before_step(optimizer)

    def _begin(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, in_backward: bool
    ) -> None:
        """Observe a model and its optimizers.

        Raises:
            GuardError: if it has no moment at which all its gradients are averaged.
        """
        reduction = other_reduction(model)
        why = f"{reduction} may keep gradients apart" if reduction else ""
        if why or in_backward:
            raise GuardError(why or "an optimizer steps inside of backward", APART)
        parameters = {id(p) for p in model.parameters()}
        known = tuple(self.optimizers)
        # ZeroRedundancyOptimizer has another one inside, which is not the script's.
        inner = {id(attribute) for o in known for attribute in vars(o).values()}
        outer = [o for o in known if id(o) not in inner]
        own = [o for o in outer if _parameter_ids([o]) & parameters] or [optimizer]
        # Each optimizer's gradients may be clipped by a norm of their own.
        skip = (*SKIP, "gradients") if len(own) > 1 else SKIP
        observer = Observer(
            model, own, skip=skip, patience_s=self.patience_s, exchange=Aside
        )
        self.observers[model] = weakref.ref(observer)

    def _observer(self, model: nn.Module) -> Observer | None:
        observer = self.observers.get(model)
        return observer and observer()

    def _trained(self, parameters: set[int]) -> list[nn.Module]:
        """Return the models whose parameters an optimizer holds.

        If it was built before its model was sharded, it holds none. Then it is the one
        model that has gradients and that no optimizer holds.
        """
        models = self.models()
        own = [m for m in models if any(id(p) in parameters for p in m.parameters())]
        if own:
            return own
        known = _parameter_ids(tuple(self.optimizers))
        orphans = [
            model
            for model in models
            if not any(id(p) in known for p in model.parameters())
            and any(p.grad is not None for p in model.parameters())
        ]
        return orphans if len(orphans) == 1 else []

    @contextmanager
    def _quietly(self, model: nn.Module) -> Iterator[None]:
        """Note what a guard finds, and end it then; no error reaches the script."""
        line = lines.place().line
        self.busy = True
        try:
            yield
        except GuardError as error:
            if error.kind != APART:
                self._note(error, line)
            # Equal random numbers may be meant, so the guard goes on. After any other
            # finding, replicas that differ would be found at each step again.
            if error.kind == SAME_NUMBERS:
                self._observer(model).allow_same_numbers()
            else:
                self._end(model, str(error) if error.kind == APART else "")
        except Exception as error:
            self._end(model, f"{type(error).__name__}: {error}")
        finally:
            self.busy = False
        if (observer := self._observer(model)) is not None:
            seen = self.notes.remarks
            seen += [remark for remark in observer.remarks if remark not in seen]

    def _note(self, error: GuardError, line: str) -> None:
        text = str(error)
        for theirs, ours in WORDS.items():
            text = text.replace(theirs, ours)
        self.notes.findings.append(GuardFinding(error.kind or GUARD, text, line))

    def _end(self, model: nn.Module, why: str) -> None:
        observer, self.observers[model] = self._observer(model), None
        self.notes.ended += [why] if why else []
        if observer is not None:
            observer.remove()


def _parameter_ids(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    groups = [group for o in optimizers for group in o.param_groups]
    return {id(p) for group in groups for p in group["params"]}
