"""What made ranks differ, as far as the model says so; else what is likely."""

from torch import nn

from .digests import DTensor
from .sharded import units, wrapped
from .why import WHY

STAGES = (
    " Ranks that hold other parts of the model (pipeline stages) need their own group=."
)
ROOT = (
    "Other parameters are sharded and this one is whole: fully_shard was not called on "
    "what holds it, so nobody reduces it. Call fully_shard on the root too, last."
)
BY_HAND = (
    "Nothing in this model synchronises gradients, so your loop must: each of them, on "
    "every rank, in the order of named_parameters() (a set has another in each "
    "process), with zeros where a rank has None. If DDP wraps it, give the guard that."
)
STARTED = (
    "Replicas that start apart stay apart: were they built from different seeds and "
    "sent by nobody, loaded or edited on one rank, or changed after the wrap?" + STAGES
)
MAX_NORM = (
    "Its max_norm= rescales, in each forward, the rows that a rank looks up, and every "
    "rank looks up others. Leave it out, or rescale all rows after optimizer.step()."
)
FROZEN = (
    "It has no gradient, so nobody synchronises it: forward or the loop writes to it "
    "from a rank's own samples (a moving average, a codebook), or one rank loaded it. "
    "all_reduce what it is made of."
)
WALKED = (
    "At the start it was equal. Likely, in this order: gradients changed or exchanged "
    "after watch.step(), a step that one rank skipped, an optimizer that draws random "
    "numbers of each rank's own, a forward that writes to weights, weights loaded or "
    "edited on one rank." + STAGES
)


def cause(model: nn.Module, where: str, kind: str, name: str) -> str:
    """Say what to look for when a tensor of the model differs between ranks."""
    parameter = dict(model.named_parameters()).get(name)
    if parameter is None or kind not in ("gradient", "parameter"):
        return WHY[kind]
    if kind == "gradient":
        if isinstance(parameter, DTensor):
            return WHY[kind]
        if units(model):
            return ROOT
        return WHY[kind] if wrapped(model) else BY_HAND
    if where == "the start":
        return STARTED
    owner = model.get_submodule(name.rpartition(".")[0])
    if getattr(owner, "max_norm", None) is not None:
        return MAX_NORM
    return WALKED if parameter.requires_grad else FROZEN
