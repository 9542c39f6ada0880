"""A benchmark compares sides that share nothing: what one leaves behind costs another.

A hook that one wrapper sets on a parameter also runs when another wrapper trains it.
"""

from collections.abc import Mapping

from torch import nn


def apart(models: Mapping[str, nn.Module]) -> Mapping[str, nn.Module]:
    """Return the models, by side, if no parameter or buffer belongs to two of them.

    Raises:
        ValueError: if one does; the sentence names it and the two sides.
    """
    owners = {}
    for side, model in models.items():
        named = [*model.named_parameters(), *model.named_buffers()]
        for name, tensor in named:
            if (other := owners.setdefault(tensor.data_ptr(), side)) != side:
                raise ValueError(
                    f"{side!r} and {other!r} share {name}: give each its own"
                )
    return models
