"""Tensors that ranks change by themselves: which may differ, and which are wrong."""

from .exchange import Exchange, names

STILL = "No rank has changed it since the check before: it will stay so."


class Moving:
    """Judges buffers and attributes that are not the same on all ranks.

    BatchNorm's statistics are each rank's own between two forward passes: what every
    rank changes is left alone from then on. What differs and stands still is a mistake,
    and so is a buffer that some ranks change again and again, and others never.
    """

    def __init__(self, exchange: Exchange):
        self.exchange = exchange
        self.free: set[str] = set()  # each rank has its own, and may
        self.waiting: dict[str, dict] = {}  # of each kind, what differed last time
        self.changes: dict[str, list] = {}  # ranks that changed it, at each check
        self.places: dict[str, str] = {}  # where each kind was judged last

    def wrong(self, where: str, kind: str, different: list) -> tuple[list, str]:
        """Those that are wrong of what differs, and why: (name, tensor, digests)."""
        if self.places.get(kind) == where:
            return [], ""  # the same step: nothing can have moved
        self.places[kind] = where
        still, partly, who = [], [], []
        waiting = self.waiting.get(kind, {})
        self.waiting[kind] = {name: now for name, _, now in different}
        for item in different:
            name, _, now = item
            before = waiting.get(name)
            if before is None:
                continue
            changed = {i for i, v in enumerate(now) if v != before[i]}
            if not changed:
                still.append(item)
                continue
            past = self.changes.setdefault(name, [])
            past.append(changed)
            ever = set().union(*past)
            if len(ever) == len(now) or kind == "attribute":
                self.free.add(name)
            elif len(past) > 1:
                partly.append(item)
                who = sorted(self.exchange.ranks[i] for i in ever)
        if still or not partly:
            return still, STILL
        one = "changes" if len(who) == 1 else "change"
        return partly, (
            f"Only {names(who)} {one} it: change it on every rank, with the same "
            "values, or reduce what it is made of over the ranks."
        )

    def equal(self, kind: str) -> None:
        """Forget what differed: it no longer does."""
        self.waiting.pop(kind, None)
