"""Which ranks a tool names: one fixed rule for each kind of output, no opinion."""

import re
from collections import Counter

from allranks.base.report import describe_stack, is_user_code

NAMES, SHOWS, BLAMES, SILENT = "names", "shows", "blames", "silent"
NONE = "n/a"
VERDICTS = {
    NAMES: "it names a rank that the others wait for, and no other",
    SHOWS: "it ends the wait, or shows where ranks stand, but names nobody",
    BLAMES: "it names a rank that is not at fault",
    SILENT: "it says nothing",
    NONE: "it cannot be attached",
}
_MESSAGES = [  # how torch's own messages name ranks
    re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier"),
    re.compile(r"Rank (\d+) is running collective"),
]
_PAIRWISE = re.compile(r"\b(?:send|recv|isend|irecv|batch_isend_irecv)\(")
_FRAME = re.compile(r'^  File ".*/(.*, line \d+ in .*)$', re.MULTILINE)
GONE = ""  # the place of a rank that has left the code that hangs
MUTE = "it does not answer"


def in_message(text: str) -> set[int]:
    """Return the ranks that an exception names, other than the one that raises it."""
    found = [match for rule in _MESSAGES for match in rule.findall(text)]
    return {int(rank) for names in found for rank in re.findall(r"\d+", names)}


def in_places(places: dict[int, str]) -> set[int]:
    """Return the ranks that stand out, from the line where each stands.

    These are the ranks that are gone while others wait. If none is gone, they are those
    outside of the place where the majority stands; all of them, if no place has a
    majority, or if all stand in the same send or recv.

    >>> in_places({0: "dist.barrier()", 1: GONE})
    {1}
    >>> in_places({0: "dist.send(x, 1)", 1: "dist.send(x, 0)"})
    {0, 1}
    """
    gone = {rank for rank, place in places.items() if place == GONE}
    counts = Counter(places.values())
    (most, number), *_ = counts.most_common()
    if gone:
        return gone if len(gone) < len(places) else set()
    if len(counts) == 1:
        return set(places) if _PAIRWISE.search(most) else set()
    if 2 * number <= len(places):
        return set(places)
    return {rank for rank, place in places.items() if place != most}


def places_in_report(text: str, world_size: int) -> dict[int, str]:
    """Say where each rank stands, from the report of live ranks."""
    places = dict.fromkeys(range(world_size), GONE)
    for who, place in re.findall(r"^ranks? (.+?) waits? in (.+)$", text, re.MULTILINE):
        for rank in _numbers(who):
            places[rank] = place
    return places


def places_in_stacks(stacks: dict[int, str], sources: dict[str, str]) -> dict[int, str]:
    """Say where each rank stands, from the stacks of ``faulthandler`` or py-spy."""
    return {rank: _place(stack, sources) for rank, stack in stacks.items()}


def innermost(stack: str) -> str:
    """Return the frame in which the main thread waits, in the tool's own notation."""
    return next(iter(_FRAME.findall(_as_faulthandler(stack))), "nothing").strip()


def _place(stack: str, sources: dict[str, str]) -> str:
    """Return the reader's line of a stack; GONE without one, MUTE without a stack."""
    text = _as_faulthandler(stack)
    frames = re.findall(r'^  File "(.*)", line \d+ in ', text, re.M)
    if not frames:
        return MUTE
    if not any(name in sources for name in frames if is_user_code(name)):
        return GONE
    return describe_stack(text, sources, "broken")


def main_thread(stack: str) -> str:
    """Return the main thread's part of a stack, in the tool's own notation."""
    parts = re.split(r"^(?=Thread |Current thread )", stack, flags=re.M)
    telling = "Current thread ", '"MainThread"'
    found = [part for part in parts if any(mark in part for mark in telling)]
    return found[-1] if found else stack


def _as_faulthandler(stack: str) -> str:
    """Return the main thread's frames in the notation of ``faulthandler``."""
    frame = re.compile(r"^ +(\S+) \((.+):(\d+)\)$", re.MULTILINE)
    return frame.sub(r'  File "\2", line \3 in \1', main_thread(stack))


def _numbers(who: str) -> list[int]:
    """Read ``0–2 and 5`` as the ranks 0, 1, 2 and 5."""
    found = []
    for part in re.findall(r"\d+(?:–\d+)?", who):
        first, _, last = part.partition("–")
        found += range(int(first), int(last or first) + 1)
    return found


def judge(named: set[int], guilty: tuple | str, text: str) -> str:
    """Return one of ``VERDICTS`` for what a tool said.

    Args:
        named: the ranks that it named.
        guilty: the ranks that the others wait for, or a pattern for a wrong address.
        text: what it said; "" if it was silent.
    """
    if not text:
        return SILENT
    if isinstance(guilty, str):
        return NAMES if re.search(guilty, text) else SHOWS
    if not named:
        return SHOWS
    return NAMES if named <= set(guilty) else BLAMES
