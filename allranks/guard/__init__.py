"""A guard for your own training: it raises when ranks go silently wrong.

Copy this folder beside your script; it needs torch and nothing else::

    from guard import Guard  # in this repository: from allranks.guard

    watch = Guard(model, optimizer)  # after DDP(...) or fully_shard(...)
    for epoch in range(epochs):
        for x, y in watch.epoch(loader, epoch):
            loss_of(model, x, y).backward()
            watch.step()  # after backward, once per step
            optimizer.step()
"""

from .exchange import GuardError
from .watch import Guard

__all__ = ["Guard", "GuardError"]
