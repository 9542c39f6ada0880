"""What a guard compares bit by bit, by kind and name."""

import torch

from .hooks import joining
from .why import KINDS, OUTSIDE


def tensors_of(checks, kinds) -> dict[str, dict[str, torch.Tensor]]:
    """What is compared, by kind and name."""
    found = {kind: {} for kind in kinds if KINDS[kind] not in checks.skip}
    parameters = checks.parameters()
    if "parameter" in found:
        found["parameter"] = parameters
    if OUTSIDE in found:
        found[OUTSIDE] = checks.settings.outside()
    if joining(checks.model):
        found.pop("gradient", None)  # a rank that came to its end has old ones
    if "gradient" in found:
        found["gradient"] = {
            name: p.grad for name, p in parameters.items() if p.grad is not None
        }
    if "buffer" in found:
        out = checks.replicas.moving.free
        buffers = checks.model.named_buffers()
        found["buffer"] = {
            n: b for n, b in buffers if n not in out and not checks._out(n)
        }
    if "attribute" in found:
        found["attribute"] = {
            n: t
            for n, t in checks.attributes.tensors().items()
            if n not in checks.replicas.moving.free and not checks._out(n)
        }
    if "optimizer state" in found:
        state = checks.settings.state().items()
        found["optimizer state"] = {
            n: s for n, s in state if not checks._out(n.partition(" of ")[2])
        }
    return found
