"""Tables that number names: the same number must mean the same on every rank."""

from ast import literal_eval
from types import ModuleType
from weakref import ref

from torch.utils.data import IterableDataset

from .constants import constants, lines
from .digests import number
from .exchange import Exchange, GuardError, names
from .health import another

NUMBERS = (
    "the ranks mean different things by one number. Sort the names before you number "
    "them: a set has another order in each process."
)
ORDERS = (
    "every rank must hold the same entries in the same order. Sort what listdir or a "
    "set gives; let the sampler shuffle."
)
MANY = 20_000  # entries; larger tables are no vocabulary of labels


class Codes:
    """Looks into data sets, collate functions and the model, once for each data set."""

    def __init__(self, exchange: Exchange, model):
        self.exchange, self.model = exchange, model
        self.known: dict[int, ref] = {}  # data sets of earlier epochs
        self.tables: dict = {}
        self.fresh = False  # the data set has not been seen before
        self.text = ""  # the data set's settings
        self.tell = print

    def look(self, own: dict, loader) -> None:
        """Add to a loader's facts, before the data set fills caches of its own."""
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
                held = [(f"{kind}.{k}", v) for k, v in _held(dataset).items()]
                self.text = lines(constants(held))
            own["settings"] = number(self.text)
            parts = [] if self.model is None else self.model.modules()
            collate = getattr(loader, "collate_fn", None)
            self.tables = codes(dataset, collate, *parts)
            own["codes"] = number(repr(self.tables))

    def judge(self, where: str, values: list[int], settings: list[int]) -> None:
        """Raise if a name has another number on another rank; warn of settings."""
        if len(set(settings)) > 1:
            self.tell(another(self.exchange, self.exchange.texts(self.text)))
        if len(set(values)) == 1:
            return
        texts = self.exchange.texts(repr(self.tables))
        found = apart([literal_eval(text) for text in texts])
        if found:
            groups = self.exchange.split(found[1]).items()
            said = " and ".join(f"{value!r} on {names(r)}" for value, r in groups)
            why = ORDERS if "['" not in found[0] else NUMBERS
            raise GuardError(f"{where}: {found[0]} is {said}: {why}")


def codes(*things) -> dict[str, dict]:
    """Tables that number names, or name numbers: of classes, of labels, of words.

    Args:
        things: data sets, collate functions, modules; what they hold is looked into.
    """
    found: dict[str, dict] = {}
    seen: set[int] = set()

    def visit(path: str, thing, depth: int) -> None:
        if id(thing) in seen:
            return
        seen.add(id(thing))
        for key, value in _held(thing).items():
            at = f"{path}.{key}" if path else key
            if isinstance(value, dict) and _numbers(value):
                found[at] = dict(value)
            elif isinstance(value, list | tuple) and _words(value):
                if isinstance(thing, IterableDataset):
                    continue  # names of files, which a rank may read in its own order
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


def _words(found) -> bool:
    few = 2 <= len(found) <= MANY and all(type(x) is str for x in found)
    return few and len(set(found)) == len(found)


def apart(tables: list[dict[str, dict]]) -> tuple[str, list] | None:
    """The first code that ranks do not share: its words, and what each makes of them.

    Tables over other names are each rank's own, such as an index of its own files; so
    is an order of the same names if they are no numbers' names.
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


def _held(thing) -> dict:
    return vars(thing) if hasattr(thing, "__dict__") else {}
