"""Which samples each rank reads: what the samplers of its DataLoaders gave.

A program without a DataLoader has batches, too: what its model is called with.
"""

import contextlib
import functools
import operator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
from torch.utils.data import dataloader as torch_loader

from allranks.rehearse import lines

MOST = 200_000  # samples of an epoch that are kept; a longer one is not judged


class Epoch:
    """One pass over a loader: the samples' indices, in their order."""

    def __init__(self, line: str, num_samples: int) -> None:
        self.line, self.num_samples = line, num_samples
        self.indices: list[int] = []
        self.first_step = self.last_step = self.batch = 0
        self.whole = True  # whether all indices are known
        self.finished = False

    def add(self, batch: Any) -> None:
        """Note one batch's indices, of any type; a sampler may also give keys."""
        batch = batch if isinstance(batch, (list, tuple)) else [batch]
        try:
            found = [operator.index(i) for i in batch]
        except TypeError:
            found = []
        if len(self.indices) > MOST or len(found) < len(batch):
            self.whole = False
        else:
            self.indices += found

    def facts(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return dict(vars(self))


class Samples:
    """Follows all loaders of this process, from ``watch`` on."""

    def __init__(self, steps: Any) -> None:
        self.steps = steps  # returns the number of optimizer steps so far
        self.forget()

    def forget(self) -> None:
        """Begin anew, as a process does that was forked."""
        self.epochs: list[tuple[DataLoader, Epoch, dict]] = []
        self.batch = 0  # samples in the batch that was read last
        self.given_at = -1  # the step of the batch that a model was given last
        self.given: dict[int, int] = {}  # batches of a model, and steps at their first

    def watch(self) -> None:
        """Follow each iterator that a DataLoader makes from now on, and all models."""
        register_module_forward_pre_hook(self.give)
        get_iterator = DataLoader._get_iterator
        next_index = torch_loader._BaseDataLoaderIter._next_index
        next_batch = torch_loader._BaseDataLoaderIter.__next__
        reset = torch_loader._MultiProcessingDataLoaderIter._reset
        samples = self

        @functools.wraps(get_iterator)
        def _get_iterator(loader: DataLoader) -> Any:
            samples.begin(loader)
            made = get_iterator(loader)
            made._rehearsed = samples.newest()
            return made

        @functools.wraps(reset)
        def _reset(iterator: Any, loader: DataLoader, first_iter: bool = False) -> None:
            if not first_iter:  # workers that persist begin another pass
                samples.begin(loader)
                iterator._rehearsed = samples.newest()
            reset(iterator, loader, first_iter)

        @functools.wraps(next_index)
        def _next_index(iterator: Any) -> Any:
            batch = next_index(iterator)
            epoch = getattr(iterator, "_rehearsed", None) or samples.newest()
            if epoch is not None:
                epoch.add(batch)
            return batch

        @functools.wraps(next_batch)
        def _next(iterator: Any) -> Any:
            from allranks.guard import datasets  # late: it takes a second to import

            epoch = getattr(iterator, "_rehearsed", None)
            if epoch is not None:
                epoch.last_step = samples.steps()
            try:
                batch = next_batch(iterator)
                samples.batch = datasets.batch_rows(batch)
                if epoch is not None:
                    epoch.batch = max(epoch.batch, samples.batch)
                return batch
            except StopIteration:
                if epoch is not None:
                    epoch.finished = True
                raise

        DataLoader._get_iterator = _get_iterator
        torch_loader._MultiProcessingDataLoaderIter._reset = _reset
        torch_loader._BaseDataLoaderIter._next_index = _next_index
        torch_loader._BaseDataLoaderIter.__next__ = _next

    def begin(self, loader: DataLoader) -> None:
        """Begin an epoch of a loader."""
        from allranks.guard.datasets import length  # late, too

        if isinstance(loader.dataset, IterableDataset):
            epoch, about = Epoch(lines.place()[0], -1), {}
            epoch.whole = False
        else:
            epoch, about = Epoch(lines.place()[0], length(loader.dataset)), {}
            with contextlib.suppress(Exception):  # a data set may object to questions
                about = _sampler(loader)
        epoch.first_step = epoch.last_step = self.steps()
        self.epochs.append((loader, epoch, about))

    def give(self, module: nn.Module, args: tuple) -> None:
        """Note the batch that a model trains on, where no DataLoader tells it.

        The first module that is called after a step is the model, or its wrapper.
        """
        step = self.steps()
        if self.epochs or self.given_at == step or not torch.is_grad_enabled():
            return
        rows = [a.shape[0] for a in args if torch.is_tensor(a) and a.dim()]
        if rows and module.training:
            self.given_at, self.batch = step, rows[0]
            self.given.setdefault(rows[0], step)

    def newest(self) -> Epoch | None:
        """Return the epoch that began last; workers fetch ahead before it is named."""
        return self.epochs[-1][1] if self.epochs else None

    def trained(self) -> int:
        """Return the samples of the largest batch with which the optimizer stepped."""
        sizes = [e.batch for _, e, _ in self.epochs if e.last_step > e.first_step]
        sizes += [rows for rows, step in self.given.items() if step < self.steps()]
        return max(sizes, default=0)

    def facts(self) -> list[dict[str, Any]]:
        """Return a row for each epoch, with the number of its loader."""
        numbers: dict[int, int] = {}
        return [
            {
                "loader": numbers.setdefault(id(loader), len(numbers)),
                **e.facts(),
                **about,
            }
            for loader, e, about in self.epochs
        ]


def _sampler(loader: DataLoader) -> dict[str, Any]:
    """Say what kind of sampler it has, as far as laws speak of it."""
    from allranks.guard.datasets import fingerprint

    sampler = loader.sampler
    distributed = isinstance(sampler, DistributedSampler)
    return {
        "distributed": distributed,
        "shuffles": bool(getattr(sampler, "shuffle", False)) if distributed else None,
        "drop_last": bool(loader.drop_last or getattr(sampler, "drop_last", False)),
        "data": list(fingerprint(loader.dataset)),
    }
