"""What a training step holds and sends: predicted, and counted as it runs.

Chapter 12 derives the formulas.
"""

from collections import Counter
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

SIGNS = {
    "_allgather_base_": "G",
    "allgather_": "G",
    "_reduce_scatter_base_": "S",
    "allreduce_": "A",
    "broadcast_": "B",
}


class Meter(TorchDispatchMode):
    """See each operation, and count bytes and collectives on this rank.

    held    the most bytes of weights, gradients and optimizer states
    sent    bytes that leave this rank if each collective is a ring
    rings   the same, for each kind of collective and its ranks
    events  collectives, and where blocks begin: G f0 S b0, say
    """

    def __init__(self, net: nn.Module, optimizer, blocks=()) -> None:
        super().__init__()
        self.net, self.optimizer, self.params = net, optimizer, {}
        self.held, self.rings, self.events = Counter(), Counter(), []
        for k, block in enumerate(blocks):
            block.register_forward_pre_hook(partial(self.forward, k))
            block.register_forward_hook(partial(self.backward, k))

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        self.held |= self.look()  # the larger of both, for each kind
        if op.namespace == "c10d":
            self.count(op._opname, args)
        return result

    @property
    def sent(self) -> float:
        return sum(self.rings.values())

    @torch.no_grad()
    def look(self) -> Counter:
        """Return the bytes of each kind that are there now."""
        self.params |= dict.fromkeys(self.net.parameters())  # some may go
        weights = [*self.params]
        for group in self.optimizer.param_groups:  # shards, if it has them
            weights += group["params"]
        states = [t for s in self.optimizer.state.values() for t in s.values()]
        kinds = {"weights": weights, "gradients": [p.grad for p in weights]}
        kinds["states"] = [t for t in states if t.dim()]  # no step numbers
        return Counter({kind: num_bytes(kinds[kind]) for kind in kinds})

    def forward(self, k: int, *_) -> None:
        """Note that forward has come to a block."""
        self.events.append(f"f{k}")

    def backward(self, k: int, block, x: tuple, y: torch.Tensor) -> None:
        """Note it once backward comes to the block's output."""
        if y.requires_grad:
            y.register_hook(lambda _: self.events.append(f"b{k}"))

    def count(self, name: str, args: tuple) -> None:
        """Note a collective, and count what a ring of its group sends."""
        self.events.append(sign := SIGNS.get(name, name))
        group = next(a for a in args if isinstance(a, torch.ScriptObject))
        group = dist.ProcessGroup.unbox(group)
        ring = sign, *dist.get_process_group_ranks(group)
        share = 1 - 1 / group.size()  # (W - 1) / W
        if sign == "A":  # a reduce_scatter, then an all_gather
            self.rings[ring] += 2 * share * sum(t.nbytes for t in args[0])
        elif name in ("allgather_", "broadcast_"):  # they take lists
            tensors = args[0] if name == "broadcast_" else args[0][0]
            self.rings[ring] += share * sum(t.nbytes for t in tensors)
        elif name in SIGNS:
            self.rings[ring] += share * max(t.nbytes for t in args[:2])


def num_bytes(tensors: list) -> int:
    """Return the bytes of all storages, each counted once."""
    there = [t for t in tensors if t is not None]
    local = [t.to_local() if hasattr(t, "to_local") else t for t in there]
    storages = [t.untyped_storage() for t in local]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def predict(stage: int, units: list[list[int]], world_size: int) -> dict:
    """Return what a step holds at most and sends, in bytes per parameter.

    stage 0 is DDP, 1 to 3 are ZeRO's; units are the sizes of parameters, each
    of whose numbers has 4 bytes, its gradient 4, and its states in AdamW 8.
    """
    sizes, share = [sum(unit) for unit in units], 1 - 1 / world_size
    total, most = sum(sizes), max(max(unit) for unit in units)
    if stage == 0:  # a gradient is there twice until it is in its bucket
        held = {"weights": 4 * total, "gradients": 4 * (total + most)}
        held |= {"states": 8 * total, "sent": 8 * share * total}
    else:
        parts = [-(-n // world_size) for n in sizes]  # a rank's: rounded up
        part, sent = sum(parts), 8 * share * world_size * sum(parts)
        held = {"weights": 4 * world_size * part, "gradients": 4 * total}
        held |= {"states": 8 * part, "sent": sent}
    if stage >= 2:  # a unit's as a whole, and a part of those after it
        after = [sum(parts[place + 1 :]) for place in range(len(parts))]
        held["gradients"] = 4 * max(map(sum, zip(sizes, after, strict=True)))
    if stage == 3:  # a part of each unit, and one unit as a whole
        held["weights"] = 4 * (part + world_size * max(parts))
        held["sent"] = 1.5 * sent  # gathered twice, reduced once
    return {kind: each / total for kind, each in held.items()}
