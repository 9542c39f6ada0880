"""Chapter 12 - Sharding: gather the next unit while this one computes.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch12_prefetch.py
"""

import job  # first, since importing torch takes seconds

import time
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn

from ch12_replicas import layers
from ch12_zero import Zero3
from ch12_zero1 import Unit
from meter import num_bytes
from tasks import GPT, loss_on, read_text


class InTurn(Zero3):
    """Gather a unit when it is needed, and record when that was.

    messages  [number of the unit, when its gather began, when it was done]
    waits     (from, to), in seconds, when the rank had nothing to compute
    """

    ahead = False

    def __init__(self, net: nn.Module, units: list, make_optimizer) -> None:
        self.works, self.way, self.messages, self.waits = {}, 1, [], []
        super().__init__(net, units, make_optimizer)

    def begin(self, unit: Unit, module: nn.Module, args: tuple) -> None:
        """Remember that forward will need the unit after this one."""
        self.way = 1
        super().begin(unit, module, args)

    def end(self, unit: Unit, module: nn.Module, args: tuple, y) -> None:
        """Remember that backward will need the unit before this one."""
        if y.requires_grad:
            y.register_hook(lambda _: setattr(self, "way", -1))
        super().end(unit, module, args, y)

    def start(self, unit: Unit) -> None:
        """Start to gather a unit's weights."""
        unit.full.untyped_storage().resize_(unit.full.nbytes)
        number = [*self.units, *self.frozen].index(unit)
        seen, mine = [number, time.monotonic(), None], unit.shard.detach()
        work = dist.all_gather_single(unit.full, mine, async_op=True)
        done = work.get_future()
        done.add_done_callback(lambda _: seen.__setitem__(2, time.monotonic()))
        self.messages.append(seen)
        self.works[unit] = work

    def gather(self, unit: Unit) -> None:
        """Wait for a unit's weights, and start to gather the next unit's."""
        since = time.monotonic()
        if unit not in self.works:
            self.start(unit)
        self.works.pop(unit).wait()
        self.waits.append((since, time.monotonic()))
        coming = dict(pairwise(self.units[:: self.way])).get(unit)
        if self.ahead and coming and not num_bytes([coming.full]):
            self.start(coming)  # it isn't whole yet

    def share(self) -> None:
        """Free what was gathered but not used: the weights have changed."""
        for unit in [*self.works]:
            self.works.pop(unit).wait()
            self.release(unit)
        super().share()


class Ahead(InTurn):
    """Gather the next unit while this one computes."""

    ahead = True


def record(make, args, rank: int, world_size: int, device) -> tuple:
    """Train; return (start, forward's end, end), gathers, waits of a step.

    Of five steps, take the fastest: other programs slow down the rest.
    """
    torch.manual_seed(args.seed)
    net, text = GPT(args.width, args.layers).to(device), read_text()[0]
    way, found = make(net, layers(net), torch.optim.SGD), []
    dice = torch.Generator().manual_seed(args.seed + rank)
    for _ in range(5):
        starts = torch.randint(len(text) - 64, (args.windows,), generator=dice)
        way.messages, way.waits = [], []
        dist.barrier()
        times = [time.monotonic()]
        loss = loss_on(way.model, text, starts, device)
        times.append(time.monotonic())
        loss.backward()
        times.append(time.monotonic())
        way.step()
        found.append((times, way.messages, way.waits))
    return min(found, key=lambda each: each[0][2] - each[0][0])


def report(name: str, times, messages, waits) -> None:
    """Print when each gather of a step began and ended, in ms."""
    zero, middle, end = times
    waited = sum(to - since for since, to in waits)
    numbers = [middle - zero, end - zero, waited]
    forward, step, waited = (f"{1000 * number:.1f}" for number in numbers)
    job.say(f"{name}: forward {forward}, step {step}, waits {waited} ms")
    for number, since, to in messages:
        late = sum(max(0, min(to, b) - max(since, a)) for a, b in waits)
        each = (f"{1000 * t:.1f}" for t in (since - zero, to - zero, late))
        since, to, late = each
        job.say(f"  unit {number}: {since} to {to} ms, waits {late}")


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    numbers = {"layers": 4, "width": 512, "windows": 2, "seed": 0}
    return job.Flags(__doc__, **numbers).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        for name, make in {"in turn": InTurn, "ahead": Ahead}.items():
            found = record(make, args, *place)
            if place[0] == 0:
                report(name, *found)
