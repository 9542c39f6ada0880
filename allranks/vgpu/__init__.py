"""Virtual GPUs: several devices in one process, on a computer that has none.

``plug_in(4, memory="1 GiB")`` gives torch a device type ``vgpu`` with four devices.
Memory, placement, traffic and errors are real. Speed is not, because the clock of the
log is a model. Importing this package changes nothing.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from allranks.vgpu.backend import plug_in, unplug
from allranks.vgpu.machine import Costs, Event, Machine, Where, current
from allranks.vgpu.views import smi, timeline, traffic

__all__ = ["Costs", "Event", "clear_events", "events", "label", "plug_in"]
__all__ += ["plugged_in", "smi", "timeline", "traffic", "unplug"]


@contextmanager
def plugged_in(
    num_devices: int,
    memory: str | int | None = None,
    costs: Costs | None = None,
    kind: str = "vgpu",
    card: str | None = None,
) -> Iterator[Machine]:
    """Plug virtual GPUs in for the length of a block.

    Args:
        num_devices: as in ``plug_in``.
        memory: as in ``plug_in``.
        costs: as in ``plug_in``.
        kind: as in ``plug_in``.
        card: as in ``plug_in``.
    """
    try:
        yield plug_in(num_devices, memory, costs, kind, card)
    finally:
        unplug()


def events(device: Where = None) -> list[Event]:
    """Return the events since the last ``clear_events``, of all devices or of one.

    The log keeps the last 65,536 events; ``traffic`` counts all copies nevertheless.
    """
    found = list(current().events)
    if device is None:
        return found
    name = str(current().device(device))
    return [e for e in found if name in (e.device, e.source, e.target)]


def clear_events() -> None:
    """Forget the events, and start the estimated clock at 0 again."""
    current().clear()


def label(text: str) -> AbstractContextManager[None]:
    """Name what this thread does in a block; its events carry the text."""
    return current().label(text)
