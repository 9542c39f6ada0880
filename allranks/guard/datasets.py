"""What loaders, batches and data sets hold, and what of it is the same on all ranks.

``facts`` and ``row_digests`` are what ``data`` judges. ``Tables`` compares entries and
their order, and the numbers of names: if "cat" is 0 on one rank, it must not be 1 on
another. ``Fetched`` reads the same sample on every rank.
"""

import copy
import os
import random
import sys
from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from types import ModuleType
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from allranks.guard.configuration import as_lines, constants, warn_of_other, words
from allranks.guard.digests import digest_all, number, settle, sums
from allranks.guard.exchange import PLAIN, Exchange, GuardError
from allranks.guard.randomness import preserved

FACTS = (  # of a loader, as whole numbers; -1 is unknown
    "length",  # batches
    "replicas",  # the sampler's num_replicas: how many shares it makes
    "share",  # which of them it takes: its rank
    "seed",
    "epoch",
    "shuffle",  # 1 if it draws an order by seed and epoch
    "samples",  # in the data set
    "total",  # that the sampler deals out
    "dataset",  # a number for what it holds
    "known",  # 1 if equal numbers mean equal data
    "whole",  # 1 if the loader goes through all of it
    "stale",  # 1 if the sampler's order is that of the epoch before
    "drawn",  # 1 if samples are drawn with replacement
    "workers",  # of a stream
    "codes",  # a hash of the tables that number names
    "settings",  # a hash of the data set's constants
)
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
TOLERANCE = 1e-3  # relative; other processors and libraries round differently
MOST = 1 << 18  # elements of a sample
GENERATORS = "Generator", "Random", "RandomState"
OWN = {"rank", "seed"}  # words in the names of what a rank may draw by
OTHER = (
    "the same index of the data set is not the same sample on all ranks, drawn with "
    "equal random numbers: it {}. Each rank reads a share of one data set, so all "
    "must read, decode, number and normalize alike, in one order (sort what listdir "
    "gives): not by hash(), which is another one in each process, and not by a rank's "
    "own files, folders or statistics."
)


def inner(loader: Any) -> Any:
    """Return the DataLoader in an object that wraps one, else the object itself."""
    if isinstance(loader, DataLoader) or not hasattr(loader, "__dict__"):
        return loader
    inside = [x for x in vars(loader).values() if isinstance(x, DataLoader)]
    return inside[0] if len(inside) == 1 else loader


def sampler_of(loader: Any) -> Any:
    """Return the object that chooses a loader's samples; None if there is none."""
    loader = inner(loader)
    batches = getattr(loader, "batch_sampler", None)
    if batches is not None:  # a batch sampler without a sampler draws for itself
        return getattr(batches, "sampler", batches)
    return getattr(loader, "sampler", None)


def facts(loader: Iterable) -> dict[str, int]:
    """Return the ``FACTS`` of a loader, with -1 for those that it does not tell."""
    outer, loader = loader, inner(loader)
    sampler = sampler_of(loader)
    about = dict.fromkeys(FACTS, -1)
    about["length"] = length(outer)
    # A sampler of one's own tells what torch's tells, or some of it.
    if isinstance(getattr(sampler, "num_replicas", None), int):
        about["replicas"] = sampler.num_replicas
        about["share"] = int(getattr(sampler, "rank", -1))
        about["seed"] = int(getattr(sampler, "seed", None) or 0)
        about["epoch"] = int(getattr(sampler, "epoch", None) or 0)
        about["total"] = int(getattr(sampler, "total_size", -1))
        if hasattr(sampler, "epoch") and hasattr(sampler, "set_epoch"):
            about["shuffle"] = int(bool(getattr(sampler, "shuffle", True)))
    about["drawn"] = int(bool(getattr(sampler, "replacement", False)))
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, IterableDataset):
        about["workers"] = int(getattr(loader, "num_workers", 0))
    if hasattr(dataset, "__getitem__") and length(dataset) >= 0:
        about["samples"] = len(dataset)
        about["dataset"], known = fingerprint(dataset)
        about["known"] = int(known)
        # With torch's own samplers it is sure that a loader goes through all samples.
        plain = type(sampler) in (RandomSampler, SequentialSampler)
        batches = getattr(loader, "batch_sampler", None)
        plain = plain and type(batches) in (BatchSampler, type(None))
        about["whole"] = int(plain and length(sampler) == len(dataset))
    return about


def leaves(batch: Any) -> list[Any]:
    """List the tensors and other values in nested dicts, lists and tuples."""
    if isinstance(batch, Mapping):
        return [leaf for key in batch for leaf in leaves(batch[key])]
    if isinstance(batch, list | tuple):
        return [leaf for item in batch for leaf in leaves(item)]
    return [batch]


def batch_rows(batch: Any) -> int:
    """Count the samples in a batch, by the first dim of its first tensor."""
    sizes = [x.shape[0] for x in leaves(batch) if torch.is_tensor(x) and x.dim()]
    return sizes[0] if sizes else len(leaves(batch))


def row_digests(batch: Any, numbers: bool = True) -> list[int]:
    """Return one number for each sample, from all tensors of the batch (or its values).

    Args:
        batch: tensors in dicts, lists and tuples.
        numbers: whether whole numbers are samples; otherwise they may be the indices
            by which the loop takes its samples.

    Returns:
        The numbers; none if the samples cannot be told apart.
    """
    count = batch_rows(batch)
    parts = leaves(batch)
    if any(not isinstance(x, PLAIN) for x in parts):
        return []  # different objects may have the same text
    if not numbers and all(map(_chooses, parts)):
        return []
    tensors = [x for x in parts if torch.is_tensor(x)]
    by_sample = [x for x in tensors if x.dim() and len(x) == count]
    if by_sample:  # the others, such as a scale, belong to each sample
        rest = [x for x in tensors if not (x.dim() and len(x) == count)]
        rows = [sums([*(x[i] for x in by_sample), *rest]) for i in range(count)]
        return settle([rows])[0][0]
    return [number(str([x.tolist() if torch.is_tensor(x) else x for x in parts]))]


def _chooses(leaf: Any) -> bool:
    """Tell whether a leaf is a number, or a row of whole numbers."""
    if not torch.is_tensor(leaf):
        return isinstance(leaf, int | float)
    return leaf.dim() < 2 and not (leaf.is_floating_point() or leaf.is_complex())


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
        data, whole = fingerprint(dataset.dataset, depth)
        data = data or number(type(dataset.dataset).__name__)
        return number(f"{data} {[str(index) for index in dataset.indices]}"), whole
    if isinstance(dataset, ConcatDataset):
        parts = [fingerprint(part, depth) for part in dataset.datasets]
        return number(str(parts)), all(whole for _, whole in parts)
    if isinstance(dataset, TensorDataset):
        heads = [t[:HEAD].contiguous() for t in dataset.tensors]
        return number(f"{[len(t) for t in dataset.tensors]} {digest_all(heads)}"), True
    own = entries(dataset)
    if own:
        return own, True
    # Of a class of its own: attributes with an entry for each sample, such as names of
    # files. If none is known, there may be others, so this is no proof.
    parts, count = [], length(dataset)
    for key, value in sorted(attributes_of(dataset).items()):
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
        some = [value[i] for i in _spread(len(value))]
        if some and all(map(torch.is_tensor, some)):
            return digest_all([x.contiguous() for x in some])
        rows = [x if isinstance(x, list | tuple) else (x,) for x in some]
        if any(not isinstance(x, WORD) for row in rows for x in row):
            return 0
        return number(str([_without_root(column) for column in zip(*rows)]))  # noqa: B905
    except (TypeError, ValueError, IndexError, KeyError, RuntimeError):
        return 0  # a class of its own that does not behave as these do


def _spread(count: int) -> list[int]:
    """Return the places of up to about ``HEAD`` entries, spread evenly over all."""
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


def attributes_of(thing: Any) -> dict[str, Any]:
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

    def add_facts(self, own: dict[str, int], loader: Any) -> None:
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
                values = [(f"{kind}.{k}", v) for k, v in attributes_of(dataset).items()]
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
        apart = first_apart([literal_eval(text) for text in texts])
        if apart:
            entry, values = apart
            said = self.exchange.by_ranks([repr(x) for x in values], " and ")
            why = ORDERS if "['" not in entry else NUMBERS
            raise GuardError(f"{where}: {entry} is {said}: {why}")


def find_tables(*things: Any) -> dict[str, dict]:
    """Return tables of classes, labels or words: names to numbers, or the reverse.

    Args:
        *things: data sets, collate functions and modules to look into.

    Returns:
        The tables by their path, such as "Folder.class_to_idx".
    """
    tables: dict[str, dict] = {}
    seen: set[int] = set()

    def visit(path: str, thing: Any, depth: int) -> None:
        if id(thing) in seen:
            return
        seen.add(id(thing))
        for key, value in attributes_of(thing).items():
            at = f"{path}.{key}" if path else key
            if isinstance(value, dict) and _numbers_names(value):
                tables[at] = dict(value)
            elif isinstance(value, list | tuple) and _is_vocabulary(value):
                # In an iterable these are files, which a rank may read in any order.
                if not isinstance(thing, IterableDataset):
                    tables[at] = dict(enumerate(value))
            elif (
                depth
                and hasattr(value, "__dict__")
                and not isinstance(value, type | ModuleType)
            ):
                visit(at, value, depth - 1)

    for thing in things:
        visit(type(thing).__name__, thing, 2)
    return tables


def _numbers_names(table: dict) -> bool:
    """Tell whether a dict has one of 0, 1, 2 ... for each name, or the reverse."""
    if not 2 <= len(table) <= MANY:
        return False
    keys, values = list(table), list(table.values())
    if all(type(x) is str for x in values):
        keys, values = values, keys
    if not all(type(x) is int for x in values) or len(set(keys)) < len(keys):
        return False
    return set(values) == set(range(len(values)))


def _is_vocabulary(names: list | tuple) -> bool:
    """Tell whether a list holds different names, so that their places number them."""
    few = 2 <= len(names) <= MANY and all(type(x) is str for x in names)
    return few and len(set(names)) == len(names)


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


def reader(loader: Any) -> Callable[[], list[torch.Tensor]] | None:
    """Return a function that reads the same two samples; None if that may do harm.

    With workers it may: a data set may open its files in its first fetch, which must
    not happen before the workers are forked.
    """
    dataset = getattr(inner(loader), "dataset", None)
    if isinstance(dataset, IterableDataset) or getattr(inner(loader), "num_workers", 1):
        return None
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return None
    count = len(dataset)
    return lambda: [x for at in sorted({0, count // 2}) for x in _read(dataset, at)]


def _read(dataset: Any, index: int) -> list[torch.Tensor]:
    """Return a sample as tensors, read with all generators seeded with 0."""
    numpy = sys.modules.get("numpy")
    with preserved(torch.device("cpu")):
        random.seed(0)
        torch.default_generator.manual_seed(0)
        if numpy:
            numpy.random.seed(0)
        return [_tensor(leaf) for leaf in leaves(_copied(dataset)[index])]


def _copied(thing: Any, depth: int = 3) -> Any:
    """Copy an object, so that it can be changed, with generators seeded with 0."""
    if not hasattr(thing, "__dict__"):
        return thing
    copied = copy.copy(thing)
    for key, value in vars(copied).items():
        if type(value).__name__ in GENERATORS:
            vars(copied)[key] = _alike(value)
        elif depth and hasattr(value, "__getitem__") and hasattr(value, "__dict__"):
            vars(copied)[key] = _copied(value, depth - 1)
    return copied


def _alike(generator: Any) -> Any:
    """Return a generator of the same kind that draws the same numbers on all ranks."""
    if hasattr(generator, "bit_generator"):  # NumPy's newer ones cannot be seeded again
        return type(generator)(type(generator.bit_generator)(0))
    copied = copy.deepcopy(generator)
    getattr(copied, "manual_seed", copied.seed)(0)
    return copied


def _tensor(leaf: Any) -> torch.Tensor:
    if torch.is_tensor(leaf):
        return leaf.detach().cpu()
    if isinstance(leaf, int | float):
        return torch.tensor(leaf)
    if isinstance(leaf, str | bytes):
        return torch.tensor(number(leaf))
    if hasattr(leaf, "tobytes"):  # an array, a number of NumPy's, an image
        return torch.frombuffer(bytearray(leaf.tobytes() + b" "), dtype=torch.uint8)
    raise TypeError(type(leaf).__name__)


class Sample(NamedTuple):
    """What a rank tells about the samples that it read; 0 is unknown."""

    digest: int = 0
    form: int = 0  # a hash of shapes and dtypes
    drawn_by: int = 0  # a hash of the attributes by which a rank may draw


class Fetched:
    """Reads two samples of each data set on all ranks, and compares them.

    Args:
        exchange: between the ranks, each of which takes a share of the data set.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.samples: list[torch.Tensor] = []  # parts of two samples

    def read(self, loader: Any) -> Sample:
        """Read two samples, twice, and describe them if both times they are equal."""
        self.samples = []
        read_samples = reader(loader)
        try:
            first = read_samples() if read_samples else []
            again = read_samples() if read_samples else []
        except Exception:  # the data set raises it, and will raise it in the loader too
            return Sample()
        sizes = [tuple(x.shape) for x in first]
        equal = digest_all(first) == digest_all(again)
        if not first or not equal or sum(x.numel() for x in first) > MOST:
            return Sample()
        self.samples = first
        # A data set that knows its rank or seed may draw by it, and then should differ.
        own = [
            f"{key}={value}"
            for key, value in sorted(attributes_of(inner(loader).dataset).items())
            if not OWN.isdisjoint(words(key))
        ]
        types = [x.dtype for x in first]
        form = number(f"{sizes} {types}")
        return Sample(digest_all(first), form, number(str(own)))

    def judge(self, where: str, by_rank: list[Sample]) -> None:
        """Raise if an index is not the same sample on all ranks."""
        all_ranks = Sample(*map(set, zip(*by_rank, strict=True)))
        if 0 in all_ranks.digest or len(all_ranks.digest) == 1:
            return
        if len(all_ranks.drawn_by) > 1:
            return
        if len(all_ranks.form) > 1:
            texts = self.exchange.texts(str([tuple(x.shape) for x in self.samples]))
            said = f"has the shapes {self.exchange.by_ranks(texts, ' and ')}"
            raise GuardError(f"{where}: {OTHER.format(said)}")
        flat = torch.cat([x.flatten().double() for x in self.samples])
        bits = self.exchange.bytes(where, flat.view(torch.uint8).flatten())
        values = torch.stack([x.view(torch.float64) for x in bits])  # (W, elements)
        scale = max(values.abs().max().item(), 1e-30)
        off = values.max(0).values - values.min(0).values
        if not off.max() > TOLERANCE * scale:
            return
        each = [f"{v:.6g}" for v in values[:, int(off.argmax())].tolist()]
        said = f"holds {self.exchange.by_ranks(each, ' and ')}"
        raise GuardError(f"{where}: {OTHER.format(said)}")
