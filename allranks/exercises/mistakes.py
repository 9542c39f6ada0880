"""Name the mistake: compare with what is right, then with what mistakes lead to."""

from collections.abc import Mapping
from typing import Any

from allranks.exercises.oracle import Wrong, expect


def compare(
    what: str,
    got: Any,
    want: Any,
    mistakes: Mapping[str, Any],
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Raise :class:`Wrong` unless ``got`` is ``want``; end with the mistake, if known.

    Args:
        what: the subject of the sentence, as in :func:`expect`.
        mistakes: a sentence for each likely mistake, and the value that it leads to.

    >>> compare("the sum", 3, 10, {"It leaves out rank 3.": 6, "It counts ranks.": 3})
    Traceback (most recent call last):
    allranks.exercises.oracle.Wrong: the sum is 3; it should be 10. It counts ranks.
    """
    try:
        expect(what, got, want, rtol, atol)
    except Wrong as error:
        named = [s for s, value in mistakes.items() if _is(got, value, rtol, atol)]
        raise Wrong(" ".join([str(error), *named[:1]])) from None


def _is(got: Any, value: Any, rtol: float | None, atol: float | None) -> bool:
    if isinstance(value, float) and value != value:
        return False  # NaN says nothing
    try:
        expect("it", got, value, rtol, atol)
    except Wrong:
        return False
    return True
