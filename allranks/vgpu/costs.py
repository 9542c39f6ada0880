"""The declared speeds behind the modelled clock."""

import math
from dataclasses import dataclass

from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True)
class Costs:
    """The declared speeds behind the modelled clock: round numbers, no product's.

    An op takes ``latency_s`` plus the longer of its arithmetic and its memory traffic.
    A copy takes ``latency_s`` plus its bytes over the link.

    Args:
        flops: floating-point operations per second; a multiply-add counts as two.
        memory: bytes per second that a device reads and writes in its own memory.
        link: bytes per second between two devices, or a device and the host.
        latency_s: seconds to start an op or a copy.
    """

    flops: float = 10e12
    memory: float = 500e9
    link: float = 16e9
    latency_s: float = 5e-6

    def __post_init__(self):
        for name, value in vars(self).items():
            if not value >= 0 or (name != "latency_s" and value == 0):
                raise ValueError(f"Costs({name}={value}): must be above 0")


def count_flops(op, args, kwargs, out) -> float:
    """Count an op's arithmetic as torch's FlopCounterMode does, or one per element."""
    counter = flop_registry.get(op._overloadpacket)
    if counter is not None:
        return counter(*args, **kwargs, out_val=out)
    outs = out if isinstance(out, (tuple, list)) else [out]
    return float(sum(math.prod(getattr(o, "shape", ())) for o in outs))
