"""One check of everything, in one message and what it asks for."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from . import gradients
from .data import DataChecks
from .digests import DTensor
from .exchange import Exchange, GuardError, names
from .loaders import batch_rows
from .randomness import Randomness, draws
from .replicas import Replicas
from .settings import WRAPPERS, Settings

KINDS = {  # in the order of cause and effect: what is first is named first
    "gradient": "gradients",
    "optimizer state": "optimizer",
    "parameter": "parameters",
    "buffer": "buffers",
}


SKIPS = {*KINDS.values(), "data", "devices", "randomness"}


def _names(given) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _bare(name: str) -> str:
    """A parameter's name without the wrappers that it begins with."""
    while name.startswith(("module.", "_orig_mod.")):
        name = name.partition(".")[2]
    return name


def mixed(model: nn.Module) -> bool:
    """Whether data and tensor parallelism meet: some ranks share batches, some not."""
    found = [p for p in model.parameters() if isinstance(p, DTensor)]
    if found and isinstance(model, WRAPPERS):
        return True
    cut = [sum(not x.is_replicate() for x in p.placements) for p in found]
    inner = [len(p.placements) > 1 and p.placements[-1].is_replicate() for p in found]
    return any(inner) or any(count > 1 for count in cut)


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
        self.scaler = scaler
        ignore += tuple(getattr(model, "parameters_to_ignore", ()))
        self.ignore = tuple(map(_bare, ignore))
        first = next(itertools.chain(model.parameters(), model.buffers()), None)
        self.device = torch.device("cpu") if first is None else first.device
        self.exchange = Exchange(group, self.device, patience_s)
        self.replicas = Replicas(self.exchange)
        self.settings = Settings(
            self.exchange, model, self.parameters, optimizer, scaler
        )
        self.local = gradients.LocalGradients(model, self.parameters())
        wrapped = isinstance(model, WRAPPERS) or self.local.units
        sharded = any(isinstance(p, DTensor) for p in model.parameters())
        both = group is None and mixed(model)
        self.data = DataChecks(self.exchange, bool(sharded and not wrapped), both)
        shared = self.data.shared or both or "randomness" in self.skip
        self.random = Randomness(self.exchange, model, self.device, shared)
        self.fed = False  # epoch() is in use

    def parameters(self) -> dict[str, nn.Parameter]:
        """The model's parameters by name, but for those to ignore."""
        return {n: p for n, p in self.model.named_parameters() if not self._out(n)}

    def _out(self, name: str) -> bool:
        return bool(self.ignore) and _bare(name).startswith(self.ignore)

    def tensors(self, kinds) -> dict[str, dict[str, torch.Tensor]]:
        """What is compared, by kind and name."""
        found = {kind: {} for kind in kinds if KINDS[kind] not in self.skip}
        parameters = self.parameters()
        if "parameter" in found:
            found["parameter"] = parameters
        if "gradient" in found:
            found["gradient"] = {
                name: p.grad for name, p in parameters.items() if p.grad is not None
            }
        if "buffer" in found:
            out = self.replicas.moving
            buffers = self.model.named_buffers()
            found["buffer"] = {
                n: b for n, b in buffers if n not in out and not self._out(n)
            }
        if "optimizer state" in found:
            state = self.settings.state().items()
            found["optimizer state"] = {
                n: s for n, s in state if not self._out(n.partition(" of ")[2])
            }
        return found

    def compare(self, where: str, kinds: tuple[str, ...]) -> None:
        """Send one message with everything, and judge it on every rank alike."""
        tensors = self.tensors(kinds)
        parts = [self.settings.numbers(), self.data.numbers(), self.random.numbers()]
        parts += [self.replicas.numbers(found) for found in tensors.values()]
        own = [x for part in parts for x in (len(part), *part)]
        table = [_cut(row) for row in self.exchange.integers(where, own)]
        if self.exchange.size == 1:
            return
        settings, data, random = ([row[i] for row in table] for i in range(3))
        self.settings.judge(where, settings, self.skip)
        self.data.judge(where, data)
        self.replicas.compare(where, tensors, [row[3:] for row in table])
        self.random.judge(where, random)

    def prepare(self, due: bool) -> None:
        """Before a step: set hooks if it ends in a check, take them away if not."""
        if due and (self.exchange.size > 1 or self.scaler):
            if "gradients" not in self.skip and not self.data.shared:
                self.local.arm()
            if not self.fed and draws(self.model):
                self.random.note(start=True)
        elif self.local.armed:
            self.local.disarm()

    def vote(self, where: str, more: bool, done: int) -> None:
        """Before a batch of unknown number: all ranks have it, or none."""
        have = [bool(row[0]) for row in self.exchange.integers(where, [int(more)])]
        if any(have) and not all(have):
            ranks = zip(self.exchange.ranks, have, strict=True)
            out = names(rank for rank, yes in ranks if not yes)
            raise GuardError(
                f"{where}: no batch is left on {out} after {done}; the others go on: "
                "they would wait for ever, or pair a step with another collective."
            )

    def global_batch(self, where: str, batch, expected: int) -> None:
        """Check how many samples a step takes on all ranks."""
        counts = [row[0] for row in self.exchange.integers(where, [batch_rows(batch)])]
        if sum(counts) != expected:
            raise GuardError(
                f"{where}: a step takes {sum(counts)} samples ({counts} by rank), not "
                f"{expected}. batch_size is each rank's own: divide by the ranks."
            )


def _cut(row: list[int]) -> list[list[int]]:
    parts, at = [], 0
    while at < len(row):
        parts.append(row[at + 1 : at + 1 + row[at]])
        at += 1 + row[at]
    return parts
