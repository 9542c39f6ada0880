"""Chapter 12 - Sharding: ZeRO 1, 2 and 3, each on top of the one before.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch12_zero.py
"""

import job  # first, since importing torch takes seconds

from functools import partial

from torch import nn

from ch12_replicas import compare, parse_args
from ch12_zero1 import Unit, Zero1


class Zero2(Zero1):
    """Send a unit's gradients as soon as its last one is ready."""

    stage = 2

    def __init__(self, net: nn.Module, units: list, make_optimizer) -> None:
        super().__init__(net, units, make_optimizer)
        self.missing = {unit: {*unit.params.values()} for unit in self.units}
        for unit in self.units:
            for p in unit.params.values():
                p.register_post_accumulate_grad_hook(partial(self.ready, unit))

    def ready(self, unit: Unit, param: nn.Parameter) -> None:
        """Reduce the unit if this was its last missing gradient."""
        self.missing[unit].remove(param)
        if not self.missing[unit]:
            self.missing[unit] = {*unit.params.values()}
            unit.reduce()

    def average(self) -> None:
        """Check that each gradient came; backward has reduced them."""
        for unit in self.units:
            late = self.missing[unit]
            if unit.shard.grad is None or len(late) < len(unit.params):
                unit.check(n for n, p in unit.params.items() if p in late)


class Zero3(Zero2):
    """Keep a unit's whole weights only while the unit computes."""

    stage = 3

    def __init__(self, net: nn.Module, units: list, make_optimizer) -> None:
        super().__init__(net, units, make_optimizer)
        for unit in self.units + self.frozen:
            first, last = unit.modules[0], unit.modules[-1]
            unit.shard.data = unit.shard.detach().clone()
            self.release(unit)
            first.register_forward_pre_hook(partial(self.begin, unit))
            last.register_forward_hook(partial(self.end, unit))

    def begin(self, unit: Unit, module: nn.Module, args: tuple) -> None:
        """Gather a unit's weights before it computes."""
        self.gather(unit)
        if unit in self.frozen and args[0].requires_grad:
            args[0].register_hook(lambda _: self.release(unit))  # in backward

    def end(self, unit: Unit, module: nn.Module, args: tuple, y) -> None:
        """Free a unit's weights until backward reaches its output."""
        self.release(unit)
        if y.requires_grad:
            y.register_hook(lambda _: self.gather(unit))

    def gather(self, unit: Unit) -> None:
        """Allocate the whole weights again, and fill them."""
        unit.full.untyped_storage().resize_(unit.full.nbytes)
        unit.gather()

    def release(self, unit: Unit) -> None:
        """Give back the memory of a unit's weights."""
        unit.full.untyped_storage().resize_(0)

    def ready(self, unit: Unit, param: nn.Parameter) -> None:
        """After a unit's last gradient, reduce, and free the weights."""
        super().ready(unit, param)
        if len(self.missing[unit]) == len(unit.params):
            self.release(unit)

    def share(self) -> None:
        """Free frozen units that are still whole; forward gathers."""
        for unit in self.frozen:
            self.release(unit)


if __name__ == "__main__":
    ways = {"ZeRO-1": Zero1, "ZeRO-2": Zero2, "ZeRO-3": Zero3}
    with job.ranks(args := parse_args()) as place:
        compare(ways, args, *place)
