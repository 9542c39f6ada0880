"""One check of everything, in one message and what it asks for."""

import itertools
import warnings
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from . import gradients, slots
from .attributes import Attributes
from .calls import Calls
from .causes import cause
from .data import DataChecks
from .digests import number, settle
from .exchange import Exchange, GuardError, cut
from .forward import Forward
from .health import Health
from .hooks import JOIN, NOT_THE_MEAN, is_compiled, joining, refuse, strange
from .randomness import Randomness
from .replicas import Replicas
from .settings import Settings
from .sharded import bare, share, wrapped
from .sources import Sources
from .tensorhooks import CLIPS, TensorHooks
from .tensors import tensors_of
from .verdict import BY_HAND, Summed, judge
from .why import KINDS

SKIPS = {*KINDS.values(), "data", "devices", "loss", "modes", "randomness"}


def _names(given) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


class Checks:
    """What a Guard knows and how it checks; Guard says when."""

    def __init__(self, model, optimizer, scaler, group, ignore, skip, patience_s):
        ignore, skip = _names(ignore), _names(skip)
        if not SKIPS.issuperset(skip):
            raise ValueError(f"skip={skip}: there are {', '.join(sorted(SKIPS))}")
        model = nn.Module() if model is None else model
        if group is None and isinstance(model, DistributedDataParallel):
            own = model.process_group
            group = None if own.size() == dist.get_world_size() else own
        self.model, self.skip, self.steps = model, frozenset(skip), 0
        self.scaler, self.checked = scaler, -1  # the step of the last check
        ignore += tuple(getattr(model, "parameters_to_ignore", ()))
        self.ignore = tuple(map(bare, ignore))
        first = next(itertools.chain(model.parameters(), model.buffers()), None)
        self.device = torch.device("cpu") if first is None else first.device
        self.exchange = Exchange(group, self.device, patience_s)
        self.replicas = Replicas(self.exchange)
        self.settings = Settings(
            self.exchange, model, self.parameters, self._out, optimizer, scaler
        )
        self.attributes = Attributes(model)
        self.replicas.written = self.attributes.written
        self.replicas.cause = partial(cause, model)
        self.replicas.filled = partial(slots.filled, self)
        self.local = gradients.LocalGradients(model, self.parameters())
        own = share(
            model, self.local.units, dist.get_rank() if self.exchange.group else 0
        )
        rows = self.exchange.integers("the start: who shares a batch", [own])
        shares = [row[0] for row in rows]
        self.data = DataChecks(self.exchange, shares if all(shares) else None, model)
        self.data.codes.tell = self.tell
        shared = self.data.teams != len(shares) or "randomness" in self.skip
        self.random = Randomness(self.exchange, model, self.device, shared)
        self.forward = Forward(model, self.device, self.random)
        self.hooks = TensorHooks()
        self.settings.forward, self.settings.hooked = self.forward.text, self.hooks.text
        self.health = Health(self)
        self.calls = Calls(self.settings.optimizers, self._probe)
        self.sources = Sources(self.exchange, model, self.replicas.element, self.tell)
        alone = self.exchange.size == 1 or self.data.teams != len(shares)
        compiled = any(map(is_compiled, model.modules()))
        self.sources.off = alone or compiled or "loss" in self.skip
        self.told: set[str] = set()
        if not all(shares) and "data" not in self.skip:
            self.tell(
                "data and tensor parallelism meet, and which ranks share a batch "
                "cannot be told: data are not checked. Pass the process group of the "
                'data\'s axis, such as group=mesh["data"].get_group().'
            )
        self.fed = False  # epoch() is in use

    def parameters(self) -> dict[str, nn.Parameter]:
        """The model's parameters by name, but for those to ignore."""
        return {n: p for n, p in self.model.named_parameters() if not self._out(n)}

    def _out(self, name: str) -> bool:
        return bool(self.ignore) and bare(name).startswith(self.ignore)

    def compare(self, where: str, kinds: tuple[str, ...], more: list = ()) -> list:
        """Send one message with everything, and judge it on every rank alike.

        Args:
            more: tensors to bring to the CPU in the same copy; they are returned.
        """
        tensors, loose = tensors_of(self, kinds), self.settings.loose()
        why = strange(self.model)
        due = tensors.get("gradient", {})
        late = {name: due.pop(name) for name in self._resting(due)}
        rows = [self.replicas.numbers(found) for found in (*tensors.values(), late)]
        rows, host = settle(rows, [*loose, *more])
        self.settings.land(host[: len(loose)])
        parts = [
            self.settings.numbers(where),
            self.data.numbers(),
            self.random.numbers(),
            [number(why), int(bool(more))],
            self.health.numbers(where, host[len(loose) :]),
            self.sources.numbers(),
        ]
        parts += rows
        own = [x for part in parts for x in (len(part), *part)]
        table = [cut(row) for row in self.exchange.integers(where, own)]
        settings, data, random, hooks, health, sources = (
            [row[i] for row in table] for i in range(6)
        )
        if self.exchange.size > 1:
            self.settings.judge(where, settings, self.skip)
            refuse(self.exchange, where, why, [row[0] for row in hooks])
            self.data.judge(where, data)
        self.health.judge(where, health)
        if self.exchange.size > 1:
            self.replicas.hint = self.health.hint
            self.replicas.compare(where, tensors, [row[6:-1] for row in table])
            with self.calls.lenient():
                rest = [row[-1:] for row in table]
                self.replicas.compare(where, {"gradient": late}, rest)
            self.random.judge(where, random)
            self.sources.judge(where, sources)
            for what in sorted(self.hooks.clips)[:1]:
                self.tell(CLIPS.format(what))
            self.attributes.checked()
            if not all(row[1] for row in hooks):
                return []
        return host[len(loose) :]

    def compare_gradients(self, where: str, scaled: bool, found: list) -> None:
        """Compare gradients with the mean of the local ones, which a hook may leave."""
        why = strange(self.model)  # known to be the same on all ranks
        how = self.settings.factor(), scaled or bool(why), self.tolerance
        verdict = partial(judge, self.exchange, where, *how, self.health.hint)
        found = gradients.table(self.exchange, where, self.local, found)
        late = self._resting(name for name, *_ in found)
        try:
            verdict([row for row in found if row[0] not in late])
            with self.calls.lenient():
                verdict([row for row in found if row[0] in late])
        except GuardError as error:
            by_hand = isinstance(error, Summed) and not wrapped(self.model)
            if not why and not by_hand:
                raise
            self.tell(NOT_THE_MEAN.format(why) if why else BY_HAND)

    def _resting(self, names) -> list[str]:
        resting = self.calls.resting
        found = self.parameters() if resting else {}
        return [n for n in names if id(found.get(n)) in resting]

    def _probe(self, where: str) -> None:
        if self.exchange.size > 1 and not joining(self.model):
            self.exchange.integers(where, [])

    def joins(self) -> bool:
        """Whether ranks make unequal steps: then none waits here for another."""
        if not joining(self.model):
            return False
        self.tell(JOIN)
        return True

    def tell(self, sentence: str) -> None:
        """Warn once, on one rank."""
        if sentence and sentence not in self.told and self.exchange.rank == 0:
            warnings.warn(f"guard: {sentence}", stacklevel=5)
        self.told.add(sentence)

    def prepare(self, due: bool) -> None:
        """Before a step: set hooks if it ends in a check, take them away if not."""
        if due and (self.exchange.size > 1 or self.scaler):
            if "gradients" not in self.skip and not self.data.shared:
                self.local.arm()
            self.forward.arm()
            self.hooks.arm(self.model, self.parameters())
        else:
            self.disarm()

    def disarm(self) -> None:
        """Take every hook of the model's away."""
        self.local.disarm()
        self.forward.disarm()
        self.hooks.disarm()
