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
    ``guard`` is what a training calls, and it decides when a check is due. ``training``
    has what is looked at: the model, the optimizers, and what is ignored or skipped.
    ``checks`` builds all that follows. ``start`` looks once at the wrapper, the
    optimizer and the devices; then the first comparison runs.
before a step that ends in a check
    ``hooks`` are put on the model, and those of ``gradients`` on its parameters.
``epoch``
    ``data`` judges an epoch: what ``loaders`` report, with ``samplers`` for counts,
    shares and order, ``datasets`` for what a data set holds, and ``fetching``, which
    reads the same sample on every rank.
forward
    ``hooks`` note its precision, and ``randomness`` the generators before and after it.
    ``tape`` records the operations up to backward, and ``loss_inputs`` picks from them
    what is not data.
backward
    ``gradients`` takes a sketch of each local gradient.
``step``, ``check``
    ``checks`` sends one message with numbers for everything, and each part judges its
    own: ``settings`` (with ``configuration``: modules, modes, constants), ``data``,
    ``loop`` (NaN, a mode left behind, step() in the wrong place), ``replicas``
    (parameters, gradients, optimizer state; with ``buffers``), ``randomness``,
    ``loss_verdicts``. Then ``gradients`` compares with the mean of the local ones.
``preflight``, ``mark`` and ``resumed``, ``same`` and ``metric``
    ``preflight`` (``untouched`` puts back what it changes), ``checkpoints`` and
    ``metrics``.

All of them build on three others: ``exchange`` carries the messages, ``digests`` turns
tensors into numbers, and ``wrappers`` knows DDP, FSDP2 and tensor parallelism.
"""

from allranks.guard.exchange import GuardError
from allranks.guard.guard import Guard

__all__ = ["Guard", "GuardError"]
