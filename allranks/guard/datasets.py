"""What a data set holds: its entries, in their order, and tables that number names.

The entries of one data set have to be the same on all ranks, and so do the numbers: if
"cat" is 0 on one rank, it must not be 1 on another.
"""

import os
from ast import literal_eval
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from types import ModuleType
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

from allranks.guard.configuration import as_lines, constants, warn_of_other
from allranks.guard.digests import digest_all, number
from allranks.guard.exchange import Exchange, GuardError

HEAD = 1024  # entries that are digested if a list is longer, spread evenly over it
MANY = 20_000  # entries; a larger table is no vocabulary of labels
WORD = str, bytes, int, float, PurePath, type(None)
STATISTICS = "mean", "std", "var", "min", "max", "scale"
NUMBERS = (
    "the ranks mean different things by one number. Sort the names before you number "
    "them: a set has another order in each process."
)
ORDERS = (
    "every rank must hold the same entries in the same order. Sort what listdir or a "
    "set gives; let the sampler shuffle."
)


def fingerprint(dataset: Any, depth: int = 3) -> tuple[int, bool]:
    """Return a number for what a data set holds, and whether it covers everything.

    If a data set has a class of its own, the number covers those of its attributes that
    have an entry for each sample: file names, labels, indices. There may be more to it.

    Args:
        dataset: any object.
        depth: how many data sets within data sets to look into.

    Returns:
        The number, 0 if nothing is known, and whether equal numbers mean equal data.
    """
    if isinstance(dataset, Subset):
        inner, whole = fingerprint(dataset.dataset, depth)
        inner = inner or number(type(dataset.dataset).__name__)
        return number(f"{inner} {[str(index) for index in dataset.indices]}"), whole
    if isinstance(dataset, ConcatDataset):
        parts = [fingerprint(part, depth) for part in dataset.datasets]
        return number(str(parts)), all(whole for _, whole in parts)
    if isinstance(dataset, TensorDataset):
        heads = [t[:HEAD].contiguous() for t in dataset.tensors]
        return number(f"{[len(t) for t in dataset.tensors]} {digest_all(heads)}"), True
    own = entries(dataset)
    if own:
        return own, True
    parts, count = [], length(dataset)
    for key, value in sorted(held(dataset).items()):
        if isinstance(value, Dataset) and depth:
            parts.append(f"{key} {fingerprint(value, depth - 1)[0]}")
        elif count > 1 and length(value) == count:
            parts.append(f"{key} {entries(value)}")
        elif key.lstrip("_").startswith(STATISTICS):
            parts.append(f"{key} {_statistic(value)}")
    parts = [part for part in parts if not part.endswith(" 0")]
    return (number(str(parts)) if parts else 0), False


def entries(value: Any) -> int:
    """Return a number for a sequence's entries and their order; 0 if unknown."""
    try:
        if torch.is_tensor(value):
            return digest_all([value[_spread(len(value))].contiguous()])
        if isinstance(value, range):
            return number(str(value))
        if hasattr(value, "iloc"):  # a DataFrame
            value = value.iloc[_spread(len(value))].to_numpy().tolist()
        elif hasattr(value, "dtype") and hasattr(value, "tolist"):  # an array
            value = value[_spread(len(value))].tolist()
        elif isinstance(value, Mapping):
            value = list(value.items())
        if not isinstance(value, list | tuple):
            return 0
        found = [value[i] for i in _spread(len(value))]
        if found and all(map(torch.is_tensor, found)):
            return digest_all([x.contiguous() for x in found])
        flat = [x if isinstance(x, list | tuple) else (x,) for x in found]
        if any(not isinstance(x, WORD) for row in flat for x in row):
            return 0
        return number(str([_without_root(column) for column in zip(*flat)]))  # noqa: B905
    except (TypeError, ValueError, IndexError, KeyError, RuntimeError):
        return 0  # a class of its own that does not behave as these do


def _spread(count: int) -> list[int]:
    return list(range(count)) if count <= HEAD else list(range(0, count, count // HEAD))


def _without_root(column: Iterable[Any]) -> list[Any]:
    """Cut off the folder that all paths begin with, because nodes may differ in it."""
    texts = [str(x) if isinstance(x, PurePath) else x for x in column]
    if len(texts) < 2 or not all(isinstance(x, str) for x in texts):
        return texts
    root = os.path.commonpath(texts)
    return [x[len(root) :] for x in texts]


def _statistic(value: Any) -> int:
    if type(value) is float:
        return number(repr(value))
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        size = value.numel() if torch.is_tensor(value) else value.size
        return number(str(value.tolist())) if size <= HEAD else 0
    return 0


def held(thing: Any) -> dict[str, Any]:
    """Return an object's attributes; none if it has no ``__dict__``."""
    return vars(thing) if hasattr(thing, "__dict__") else {}


def length(thing: Any) -> int:
    """Return the length of an object; -1 if it has none."""
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return -1


class Tables:
    """Looks for tables that number names, once for each data set.

    Such a table may be in the data set, in the collate function, or in the model.
    """

    def __init__(self, exchange: Exchange, model: nn.Module) -> None:
        self.exchange, self.model = exchange, model
        self.known: dict[int, ref] = {}  # data sets of earlier epochs
        self.tables: dict[str, dict] = {}
        self.fresh = False  # whether the data set has not been seen before
        self.text = ""  # the data set's settings

    def look(self, own: dict[str, int], loader: Any) -> None:
        """Add to a loader's facts, before its data set begins to fill caches."""
        dataset = getattr(loader, "dataset", None)
        try:
            known = self.known.get(id(dataset))
            fresh = known is None or known() is not dataset
            self.known[id(dataset)] = ref(dataset)
        except TypeError:  # a list, or None
            fresh = False
        if own["known"] == 0 and not fresh:
            own["dataset"] = 0
        self.tables, self.text, self.fresh = {}, "", fresh
        if fresh:
            if own["replicas"] >= 0:  # one data set, of which each rank takes a share
                kind = type(dataset).__name__
                values = [(f"{kind}.{k}", v) for k, v in held(dataset).items()]
                self.text = as_lines(constants(values))
            own["settings"] = number(self.text)
            collate = getattr(loader, "collate_fn", None)
            self.tables = find_tables(dataset, collate, *self.model.modules())
            own["codes"] = number(repr(self.tables))

    def judge(self, where: str, values: list[int], settings: list[int]) -> None:
        """Raise if a name has different numbers on two ranks; warn of settings."""
        if len(set(settings)) > 1:
            warn_of_other(self.exchange, self.text)
        if len(set(values)) == 1:
            return
        texts = self.exchange.texts(repr(self.tables))
        found = first_apart([literal_eval(text) for text in texts])
        if found:
            said = self.exchange.by_ranks([repr(x) for x in found[1]], " and ")
            why = ORDERS if "['" not in found[0] else NUMBERS
            raise GuardError(f"{where}: {found[0]} is {said}: {why}")


def find_tables(*things: Any) -> dict[str, dict]:
    """Return tables of classes, labels or words: names to numbers, or the reverse.

    Args:
        *things: data sets, collate functions and modules to look into.

    Returns:
        The tables by their path, such as "Folder.class_to_idx".
    """
    found: dict[str, dict] = {}
    seen: set[int] = set()

    def visit(path: str, thing: Any, depth: int) -> None:
        if id(thing) in seen:
            return
        seen.add(id(thing))
        for key, value in held(thing).items():
            at = f"{path}.{key}" if path else key
            if isinstance(value, dict) and _numbers(value):
                found[at] = dict(value)
            elif isinstance(value, list | tuple) and _words(value):
                # In an iterable these are files, which a rank may read in any order.
                if not isinstance(thing, IterableDataset):
                    found[at] = dict(enumerate(value))
            elif (
                depth
                and hasattr(value, "__dict__")
                and not isinstance(value, type | ModuleType)
            ):
                visit(at, value, depth - 1)

    for thing in things:
        visit(type(thing).__name__, thing, 2)
    return found


def _numbers(table: dict) -> bool:
    if not 2 <= len(table) <= MANY:
        return False
    keys, values = list(table), list(table.values())
    if all(type(x) is str for x in values):
        keys, values = values, keys
    if not all(type(x) is int for x in values) or len(set(keys)) < len(keys):
        return False
    return set(values) == set(range(len(values)))


def _words(found: list | tuple) -> bool:
    few = 2 <= len(found) <= MANY and all(type(x) is str for x in found)
    return few and len(set(found)) == len(found)


def first_apart(tables: list[dict[str, dict]]) -> tuple[str, list] | None:
    """Return name and values of the first entry on which ranks disagree, or None.

    Args:
        tables: what ``find_tables`` returns on each rank. A list of names counts only
            if all ranks have the same names, because otherwise it may be an index of a
            rank's own files.
    """
    first = tables[0]
    for path in first:
        if not all(path in other for other in tables):
            continue
        own = [other[path] for other in tables]
        named = all(type(value) is int for value in own[0].values())
        if not named and len({frozenset(map(str, x.values())) for x in own}) > 1:
            continue
        common = [key for key in own[0] if all(key in other for other in own)]
        for key in common:
            values = [other[key] for other in own]
            if len(set(values)) > 1:
                return f"{path}[{key!r}]", values
    return None
