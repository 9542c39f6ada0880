"""Which samples each rank reads: what the samplers of its DataLoaders gave.

A program without a DataLoader has batches, too: what its model is called with.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
from torch.utils.data import dataloader as torch_loader

from allranks.rehearse import lines
from allranks.rehearse.records import Epoch


class Samples:
    """Follows all loaders of this process, from ``watch`` on.

    Args:
        steps: returns the number of optimizer steps so far.
    """

    def __init__(self, steps: Callable[[], int]) -> None:
        self.steps = steps
        self.forget()

    def forget(self) -> None:
        """Begin anew, as a process does that was forked."""
        self.epochs: list[Epoch] = []
        self.loaders: list[DataLoader] = []  # kept, so that no two have the same id
        self.batch = 0  # samples in the batch that was read last
        self.given_at = -1  # the step of the batch that a model was given last
        self.given: dict[int, int] = {}  # batches of a model, and steps at their first

    def watch(self) -> None:
        """Follow each iterator that a DataLoader makes from now on, and all models."""
        register_module_forward_pre_hook(self.give)
        self._follow_passes()
        self._follow_batches()

    def _follow_passes(self) -> None:
        """Begin an epoch when an iterator is made, or starts over."""
        get_iterator = DataLoader._get_iterator
        reset = torch_loader._MultiProcessingDataLoaderIter._reset

        @functools.wraps(get_iterator)
        def _get_iterator(loader: DataLoader) -> Any:
            self.begin(loader)
            iterator = get_iterator(loader)
            iterator._rehearsed = self.newest()
            return iterator

        @functools.wraps(reset)
        def _reset(iterator: Any, loader: DataLoader, first_iter: bool = False) -> None:
            if not first_iter:  # workers that persist begin another pass
                self.begin(loader)
                iterator._rehearsed = self.newest()
            reset(iterator, loader, first_iter)

        DataLoader._get_iterator = _get_iterator
        torch_loader._MultiProcessingDataLoaderIter._reset = _reset

    def _follow_batches(self) -> None:
        """Note the indices that a sampler gives, and the batches that come of them.

        With workers, indices are ahead of batches: they are fetched while the iterator
        is made, before it knows its epoch.
        """
        next_index = torch_loader._BaseDataLoaderIter._next_index
        next_batch = torch_loader._BaseDataLoaderIter.__next__

        @functools.wraps(next_index)
        def _next_index(iterator: Any) -> Any:
            batch = next_index(iterator)
            epoch = getattr(iterator, "_rehearsed", None) or self.newest()
            if epoch is not None:
                epoch.add(batch)
            return batch

        @functools.wraps(next_batch)
        def _next(iterator: Any) -> Any:
            from allranks.guard import datasets  # late: it takes a second to import

            epoch = getattr(iterator, "_rehearsed", None)
            if epoch is not None:
                epoch.last_step = self.steps()
            try:
                batch = next_batch(iterator)
            except StopIteration:
                if epoch is not None:
                    epoch.finished = True
                raise
            self.batch = datasets.batch_rows(batch)
            if epoch is not None:
                epoch.batch = max(epoch.batch, self.batch)
            return batch

        torch_loader._BaseDataLoaderIter._next_index = _next_index
        torch_loader._BaseDataLoaderIter.__next__ = _next

    def begin(self, loader: DataLoader) -> None:
        """Begin an epoch of a loader."""
        from allranks.guard.datasets import length  # late, too

        if not any(known is loader for known in self.loaders):
            self.loaders.append(loader)
        number = next(i for i, known in enumerate(self.loaders) if known is loader)
        streams = isinstance(loader.dataset, IterableDataset)
        num_samples = -1 if streams else length(loader.dataset)
        epoch = Epoch(lines.place().line, num_samples, number, whole=not streams)
        if not streams:
            with contextlib.suppress(Exception):  # a data set may object to questions
                _describe_sampler(loader, epoch)
        epoch.first_step = epoch.last_step = self.steps()
        self.epochs.append(epoch)

    def give(self, module: nn.Module, args: tuple) -> None:
        """Note the batch that a model trains on, where no DataLoader tells it.

        The first module that is called after a step is the model, or its wrapper.
        """
        step = self.steps()
        if self.epochs or self.given_at == step or not torch.is_grad_enabled():
            return
        rows = [a.shape[0] for a in args if torch.is_tensor(a) and a.dim()]
        if rows and module.training:  # (B, ...): the first one of its tensors
            self.given_at, self.batch = step, rows[0]
            self.given.setdefault(rows[0], step)

    def newest(self) -> Epoch | None:
        """Return the epoch that began last."""
        return self.epochs[-1] if self.epochs else None

    def trained(self) -> int:
        """Return the samples of the largest batch with which the optimizer stepped."""
        # An evaluation may have a larger one, which keeps no activations for backward.
        sizes = [epoch.batch for epoch in self.epochs if epoch.trains]
        sizes += [rows for rows, step in self.given.items() if step < self.steps()]
        return max(sizes, default=0)


def _describe_sampler(loader: DataLoader, epoch: Epoch) -> None:
    """Note what kind of sampler it has, as far as laws speak of it."""
    from allranks.guard.datasets import fingerprint

    sampler, data = loader.sampler, fingerprint(loader.dataset)
    epoch.distributed = isinstance(sampler, DistributedSampler)
    epoch.shuffles = epoch.distributed and bool(getattr(sampler, "shuffle", False))
    drops = loader.drop_last or getattr(sampler, "drop_last", False)
    epoch.drop_last, epoch.data = bool(drops), data
