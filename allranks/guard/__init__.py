"""A guard for your own training: it raises when ranks go silently wrong.

It needs torch and nothing else, so you can install it without the other dependencies of
this package (``pip install --no-deps``)::

    from allranks.guard import Guard

    watch = Guard(model, optimizer)  # after DDP(...) or fully_shard(...)
    for epoch in range(epochs):
        for x, y in watch.epoch(loader, epoch):
            loss_of(model, x, y).backward()
            watch.step()  # after backward, once per step
            optimizer.step()

What runs when, and in which module:

``Guard(...)``
    ``guard`` is what a training calls. It decides when a check is due, and builds all
    that follows. ``targets`` has what is looked at (the model, the optimizers, and what
    is ignored or skipped), and looks once at the wrapper, the optimizers and the
    devices; then the first comparison runs.
before a step that ends in a check
    ``hooks`` are put on the model, and those of ``gradients`` on its parameters.
``epoch``
    ``data`` judges an epoch: counts, shares and order, what data sets hold, and the
    same sample read on every rank. ``datasets`` has the facts that it judges.
forward
    ``hooks`` note its precision, and ``randomness`` the generators before and after it.
    ``tape`` records the operations up to backward, and ``loss`` picks from them what is
    not data.
backward
    ``gradients`` takes a sketch of each local gradient.
``step``, ``check``
    One message carries numbers for everything, and each part judges its own:
    ``agreement`` (with ``configuration``: parameters, modules, modes, optimizers),
    ``data``, ``health`` (NaN, a mode left behind, step() in the wrong place),
    ``replicas`` (parameters, gradients, optimizer state; with ``buffers``),
    ``randomness``, ``loss``. Then ``gradients`` compares with the mean of the local
    ones.
``preflight``, ``mark`` and ``resumed``, ``same`` and ``metric``
    ``preflight``, ``checkpoints`` and ``metrics``.

A program that does not call the guard is checked from outside by an ``observer``, as a
rehearsal does. All of them build on three others: ``exchange`` carries the messages,
``digests`` turns tensors into numbers, and ``wrappers`` knows DDP, FSDP2 and tensor
parallelism.
"""

from allranks.guard.exchange import GuardError
from allranks.guard.guard import Guard

__all__ = ["Guard", "GuardError"]
