"""``allranks.guard`` inside of a rehearsal, for each model that DDP or FSDP2 trains.

It looks when backward has ended and when the optimizer is about to step, and notes what
it finds: the script goes on as if it were not there. It reads a GPU's memory where it
is, on the host, so it takes none of it, and no copy counts. Its messages go over
sockets of its own, and if a rank does not come to a check, the guard ends, not the job.
"""

import datetime
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.fsdp import FSDPModule

from allranks.guard import Guard, GuardError, digests
from allranks.guard.exchange import APART, Exchange
from allranks.guard.hooks import Hook, nothing
from allranks.guard.randomness import SAME_NUMBERS
from allranks.guard.wrappers import strange
from allranks.rehearse import lines
from allranks.rehearse.kinds import GUARD
from allranks.rehearse.sharding import sharded, units

# laws of the rehearsal look at samples and devices; a loss is looked at in epoch() only
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
    """Messages that torch.distributed does not know of, so no name or number changes.

    ``remarks`` has what may be on purpose.
    """

    def __init__(self, *args: Any) -> None:
        self.remarks: list[str] = []
        super().__init__(*args)

    def _connect(self, timeout: datetime.timedelta) -> None:
        name = f"guard {self.ranks}"
        _counts[name] += 1
        store = dist.PrefixStore(f"{name} {_counts[name]}", c10d._get_default_store())
        self.group = dist.ProcessGroupGloo(store, self.rank, self.size, timeout)
        self.device = torch.device("cpu")
        _sockets.append(self.group)

    def _all_gather(self, everything: list[torch.Tensor], own: torch.Tensor) -> None:
        self.group.allgather([everything], [own]).wait()

    def _all_reduce(self, values: torch.Tensor) -> None:
        self.group.allreduce([values]).wait()

    def close(self) -> None:
        """Leave the sockets open, as another rank may still read from them."""
        self.group, self.size = None, 1

    def warn(self, sentence: str) -> None:
        """Keep a remark for the report; that a hash() differs is none, as all do."""
        if sentence not in self.remarks and "hash is not the same" not in sentence:
            self.remarks.append(sentence)


class Keeper(Hook):
    """A hook that does nothing but keep a guard alive as long as its model is."""

    def __init__(self, watch: "Watch") -> None:
        super().__init__(nothing)
        self.watch = watch


class Watch(Guard):
    """A guard that looks at gradients as backward leaves them, before they are clipped.

    Nothing but the model holds it, so that the script can free the model.

    Args:
        model: in DDP, or the root of what FSDP2 shards.
        optimizers: that hold some of its parameters.
        patience_s: how long a check waits for a rank that does not come.
    """

    connect = Aside

    def __init__(
        self, model: nn.Module, optimizers: list[Any], patience_s: float
    ) -> None:
        # Each optimizer's gradients may be clipped by a norm of their own.
        skip = (*SKIP, "gradients") if len(optimizers) > 1 else SKIP
        super().__init__(model, optimizers, skip=skip, patience_s=patience_s)
        self.checks.optimizer_steps.remove()  # an error there would reach the script
        gradients = self.checks.gradients
        self.look, self.kept = gradients.look, None
        gradients.look = lambda: self.look() if self.kept is None else self.kept
        self.keeper = model.register_forward_pre_hook(Keeper(self))

    def after_backward(self) -> None:
        """Look at the gradients, if the next step ends in a check."""
        self.kept = self.look() if self.checks.gradients.armed else None

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Check, unless another of the model's optimizers has just brought this on."""
        steps = self.checks.optimizer_steps
        if not steps.since or id(optimizer) in steps.since:
            self.step()
            self.kept = None
        steps.stepping(optimizer)

    def remove(self) -> None:
        """Remove all hooks."""
        super().remove()
        if hasattr(self, "keeper"):
            self.keeper.remove()


class Guards:
    """The guards of this process, and what they have found.

    Args:
        wrappers: all DDP models, as long as they are alive.
        optimizers: all optimizers, in the order in which they were made.
        patience_s: how long a check waits for a rank that does not come.
    """

    def __init__(
        self,
        wrappers: Iterable[nn.Module],
        optimizers: Iterable[torch.optim.Optimizer],
        patience_s: float,
    ) -> None:
        self.wrappers, self.optimizers = wrappers, optimizers
        self.patience_s = min(patience_s, PATIENCE_S)
        self.known: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self.kinds: list[str] = []
        self.found: list[list[str]] = []  # kind, sentence and line
        self.why_off: list[str] = []
        self.remarks: list[str] = []
        self.busy = False
        digests.read_with(lambda tensor: getattr(tensor, "_inner", tensor))

    def after_backward(self) -> None:
        """Take note that a backward pass has ended."""
        for model in tuple(self.known):
            if (watch := self._watch(model)) is not None:
                with self._quietly(model):
                    watch.after_backward()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Let each guard of the optimizer's model check what is due."""
        if self.busy or not dist.is_initialized() or dist.get_world_size() < 2:
            return
        inside = "backward" in lines.place()[1]
        for model in self._models(_held([optimizer])):
            if model not in self.known:
                self.known[model] = None
                self.kinds.append("FSDP2" if isinstance(model, FSDPModule) else "DDP")
                with self._quietly(model):
                    self._begin(model, optimizer, inside)
            if (watch := self._watch(model)) is not None:
                with self._quietly(model):
                    watch.before_step(optimizer)

    def _begin(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, inside: bool
    ) -> None:
        why = strange(model) and f"{strange(model)} may keep gradients apart"
        if why or inside:
            raise GuardError(why or "an optimizer steps inside of backward", APART)
        own = {id(p) for p in model.parameters()}
        known = tuple(self.optimizers)
        inner = {id(x) for o in known for x in vars(o).values()}  # as ZeRO has one
        mine = [o for o in known if _held([o]) & own and id(o) not in inner]
        mine = mine or [optimizer]
        self.known[model] = weakref.ref(Watch(model, mine, self.patience_s))

    def _watch(self, model: nn.Module) -> Watch | None:
        found = self.known.get(model)
        return found and found()

    def _models(self, held: set[int]) -> list[nn.Module]:
        """Return the models whose parameters an optimizer holds.

        If it was built before its model was sharded, it holds none. Then it is the one
        model that has gradients and that no optimizer holds.
        """
        roots = [unit for unit in units() if sharded(unit)]
        models = [*self.wrappers, *roots]
        found = [m for m in models if any(id(p) in held for p in m.parameters())]
        if found:
            return found
        known = _held(tuple(self.optimizers))
        left = [m for m in models if not any(id(p) in known for p in m.parameters())]
        left = [m for m in left if any(p.grad is not None for p in m.parameters())]
        return left if len(left) == 1 else []

    @contextmanager
    def _quietly(self, model: nn.Module) -> Iterator[None]:
        """Note what a guard finds, and end it then; no error reaches the script."""
        line, _, _ = lines.place()
        self.busy = True
        try:
            yield
        except GuardError as error:
            if error.kind != APART:
                self._note(error, line)
            if error.kind == SAME_NUMBERS:
                self._watch(model).checks.random.shared = True  # and looks no further
            else:
                self._end(model, str(error) if error.kind == APART else "")
        except Exception as error:
            self._end(model, f"{type(error).__name__}: {error}")
        finally:
            self.busy = False
        if (watch := self._watch(model)) is not None:
            remarks = watch.checks.exchange.remarks
            self.remarks += [text for text in remarks if text not in self.remarks]

    def _note(self, error: GuardError, line: str) -> None:
        text = str(error)
        for theirs, ours in WORDS.items():
            text = text.replace(theirs, ours)
        self.found.append([error.kind or GUARD, text, line])

    def _end(self, model: nn.Module, why: str) -> None:
        watch, self.known[model] = self._watch(model), None
        self.why_off += [why] if why else []
        if watch is not None:
            watch.remove()

    def facts(self) -> dict[str, Any]:
        """Return what a record has of them."""
        return {
            "models": self.kinds,
            "found": self.found,
            "remarks": self.remarks,
            "off": self.why_off,
        }


def _held(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    groups = [group for o in optimizers for group in o.param_groups]
    return {id(p) for group in groups for p in group["params"]}
