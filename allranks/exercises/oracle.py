"""Compare an answer with what is right, and say what is wrong, where, and by how much.

A check's cell has these names.
"""

import copy
import math
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a notebook that asks for hints should not wait for torch
    import torch


class Wrong(Exception):
    """An answer is wrong; the text says what is, and by how much.

    A text in triple quotes may go over several lines, whose indents do not count.
    """

    def __init__(self, text: str) -> None:
        super().__init__(re.sub(r"\n +", " ", text))


def expect(
    what: str,
    got: Any,
    want: Any,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Raise :class:`Wrong` unless ``got`` equals ``want``.

    The message distinguishes None, another type, shape, dtype or device, NaN, a
    constant factor, and values that differ. Lists, tuples and dicts are compared
    element by element.

    Args:
        what: the subject of the sentence, such as "the gradient of `0.weight`".
        got: the value to check.
        want: the right one.
        rtol, atol: the relative and the absolute tolerance; None for the defaults.
    """
    import torch

    if got is None and want is not None:
        raise Wrong(f"{what} is None; it should be {describe(want)}.")
    if isinstance(want, torch.Tensor):
        _expect_tensor(what, got, want, rtol, atol)
    elif isinstance(want, dict):
        _expect_type(what, got, want)
        _expect_members(what, "keys", set(got), set(want))
        for key, value in want.items():
            expect(f"{what}[{key!r}]", got[key], value, rtol, atol)
    elif isinstance(want, (set, frozenset)):
        _expect_type(what, got, want)
        _expect_members(what, "elements", got, want)
    elif isinstance(want, (list, tuple)):
        _expect_type(what, got, want)
        if _is_plain(got) and _is_plain(want) and got != want:
            raise Wrong(f"{what} is {describe(got)}; it should be {describe(want)}.")
        if len(got) != len(want):
            raise Wrong(f"{what} has {len(got)} elements; it should have {len(want)}.")
        for i, value in enumerate(want):
            expect(f"{what}[{i}]", got[i], value, rtol, atol)
    elif isinstance(want, float) and isinstance(got, (int, float)):
        if not abs(got - want) <= (atol or 0) + (rtol or 1e-6) * abs(want):  # or NaN
            off = _off(got, want)
            raise Wrong(f"{what} is {got:.6g}; it should be {want:.6g}{off}.")
    else:
        _expect_type(what, got, want)
        if got != want:
            raise Wrong(f"{what} is {describe(got)}; it should be {describe(want)}.")


def compare(
    what: str,
    got: Any,
    want: Any,
    mistakes: Mapping[str, Any],
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Raise :class:`Wrong` unless ``got`` equals ``want``, and name a known mistake.

    Args:
        what, got, want, rtol, atol: as in :func:`expect`.
        mistakes: the value that each likely mistake leads to, by a sentence about it.

    >>> compare("the sum", 3, 10, {"It leaves out rank 3.": 6, "It counts ranks.": 3})
    Traceback (most recent call last):
    allranks.exercises.oracle.Wrong: the sum is 3; it should be 10. It counts ranks.
    """
    try:
        expect(what, got, want, rtol, atol)
    except Wrong as error:
        named = [s for s, value in mistakes.items() if _is(got, value, rtol, atol)]
        raise Wrong(" ".join([str(error), *named[:1]])) from None


def differs(
    got: Any, want: Any, rtol: float | None = 0, atol: float | None = 0
) -> bool:
    """Tell whether :func:`expect` would raise; the tolerances are none at all."""
    try:
        expect("it", got, want, rtol, atol)
    except Wrong:
        return True
    return False


def _is(got: Any, value: Any, rtol: float | None, atol: float | None) -> bool:
    """Tell whether a value is what a mistake leads to."""
    if isinstance(value, float) and not math.isfinite(value):
        return False  # NaN or infinity tells nothing about the mistake
    return not differs(got, value, rtol, atol)


def in_place(returned: Any, held: Any, want: Any, fault: str) -> dict[str, Any]:
    """Return the mistake of a tensor that still holds what it held.

    Args:
        returned: by the answer, which should have written into the tensor.
        held, want: what the tensor held before, and what it should hold.
        fault: the sentence for right values that were returned instead.
    """
    import torch

    right = isinstance(returned, torch.Tensor) and torch.equal(returned, want)
    return {fault if right else "It holds what it held before.": held}


def unpack(got: Any, num: int, what: str) -> list:
    """Return the elements of what was returned, if it has that many."""
    if not isinstance(got, (tuple, list)) or len(got) != num:
        raise Wrong(f"it returned {got!r}, not {what}.")
    return list(got)


def integers(got: Any, what: str) -> list[int]:
    """Return what was returned as a list of integers."""
    try:
        return [int(number) for number in got]
    except (TypeError, ValueError):
        raise Wrong(f"it returned {got!r:.60}, not {what}.") from None


def describe(value: Any) -> str:
    """Name a value in a few words."""
    import torch

    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"a {kind} tensor of shape {list(value.shape)}"
    if isinstance(value, torch.nn.Module):
        return f"a {type(value).__name__} module"
    text = repr(value)
    return text if len(text) <= 100 else f"a {type(value).__name__}, {text[:80]} …"


class Untouched:
    """Remember tensors, modules or lists; a call or the end of a ``with`` looks again.

    >>> given = [1, 2]
    >>> with Untouched(batch=given):
    ...     given.append(3)
    Traceback (most recent call last):
    allranks.exercises.oracle.Wrong: your function changed `batch`...
    """

    def __init__(self, **values: Any) -> None:
        self._values = {name: (value, _frozen(value)) for name, value in values.items()}

    def __enter__(self) -> "Untouched":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self()

    def __call__(self) -> None:
        """Raise :class:`Wrong` if one of them has changed."""
        for name, (value, before) in self._values.items():
            try:
                expect(name, _frozen(value), before, rtol=0, atol=0)
            except Wrong as error:
                text = f"your function changed `{name}`, which it was given to read: "
                raise Wrong(f"{text}{error}") from None


def _frozen(value: Any) -> Any:
    """Return a copy that can be compared by value."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, torch.nn.Module):
        return {name: t.detach().clone() for name, t in value.state_dict().items()}
    return copy.deepcopy(value)


def _is_plain(values: Collection) -> bool:
    """Tell whether a list is short and of values that print in full."""
    kinds = int, str, type(None)
    return len(repr(values)) <= 100 and all(isinstance(v, kinds) for v in values)


def _expect_type(what: str, got: Any, want: Any) -> None:
    if isinstance(got, type(want)) and isinstance(got, bool) == isinstance(want, bool):
        return
    kind = type(got).__name__
    if "tensor(" in describe(got):  # its numbers don't matter if the type is wrong
        raise Wrong(f"{what} is of type {kind}, not {type(want).__name__}.")
    raise Wrong(
        f"{what} is of type {kind} ({describe(got)}); it should be {describe(want)}."
    )


def _expect_members(what: str, kind: str, got: set, want: set) -> None:
    for found, fault in (
        (want - got, "lacks"),
        (got - want, "has, and should not have,"),
    ):
        if found:
            listed = sorted(map(repr, found))
            more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
            raise Wrong(f"{what} {fault} the {kind} {', '.join(listed[:3])}{more}.")


def _expect_tensor(
    what: str,
    got: Any,
    want: "torch.Tensor",
    rtol: float | None,
    atol: float | None,
) -> None:
    import torch

    if not isinstance(got, torch.Tensor):
        kind = type(got).__name__
        raise Wrong(f"{what} is of type {kind}; it should be {describe(want)}.")
    # From the plainest mistake to the subtlest, since the reader is told one of them.
    for name in "shape", "dtype", "device":
        has, should = getattr(got, name), getattr(want, name)
        if has != should:
            if name == "shape":
                has, should = list(has), list(should)
            how, on = ("is", "on ") if name == "device" else (f"has {name}", "")
            raise Wrong(f"{what} {how} {on}{has}; it should be {on}{should}.")
    got, want = got.detach().cpu(), want.detach().cpu()
    try:
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
        return
    except AssertionError:
        pass
    if got.isnan().any() and not want.isnan().any():
        raise Wrong(f"{what} holds NaN; it should hold {_show(want)}.")
    values = f"it is {_show(got)}, and should be {_show(want)}"
    # One factor for all numbers (W, 1 / W, 2) gives the mistake away: a sum in place of
    # a mean, or a division too many.
    factor = _factor(got, want)
    if factor is None and want.numel() == 1:
        off = "" if got.dtype is torch.bool else _off(got.item(), want.item())
        raise Wrong(f"{what} is {_show(got)}; it should be {_show(want)}{off}.")
    if factor is not None and abs(factor - 1) < 1e-3:
        most = (got - want).abs().max().item()
        raise Wrong(f"{what} is almost right, but off by up to {most:.2g}: {values}.")
    if factor is not None:
        much = "zero" if factor == 0 else f"{factor:.4g} times what it should be"
        raise Wrong(f"{what} is {much}: {values}.")
    bad = ~torch.isclose(
        got.double(), want.double(), rtol=rtol or 1e-5, atol=atol or 1e-8
    )
    count = f"{int(bad.sum())} of {bad.numel()} elements differ"
    raise Wrong(f"{what} has wrong values ({count}): {values}.")


def _factor(got: "torch.Tensor", want: "torch.Tensor") -> float | None:
    """Return the number by which ``want`` was multiplied, if there is one."""
    import torch

    if not want.is_floating_point() or not (want.abs() > 1e-6).any():
        return None
    got, want = got.double(), want.double()
    ratio = (got.flatten() @ want.flatten() / want.norm() ** 2).item()
    if not torch.allclose(got, ratio * want, rtol=1e-3, atol=1e-5):
        return None
    whole = round(ratio) if abs(ratio) >= 1 else 1 / round(1 / ratio) if ratio else 0
    # A single wrong number is always some multiple, but one such as 4 or 1/4 tells why.
    return round(ratio, 6) if want.numel() > 1 or abs(ratio - whole) < 1e-4 else None


def _off(got: float, want: float) -> str:
    """Say by how much, as a sentence's end: by a whole factor, or by a difference."""
    if not math.isfinite(got - want) or 0 in (got, want):
        return ""
    for ratio, much in (got / want, "{:.0f} times"), (want / got, "1/{:.0f} of"):
        if ratio > 1.5 and abs(ratio - round(ratio)) < 1e-4:
            return f", and is {much.format(ratio)} that"
    return f", and is {abs(got - want):.4g} too {'large' if got > want else 'small'}"


def _show(tensor: "torch.Tensor", most: int = 4) -> str:
    """Write the first few numbers of a tensor."""
    flat = tensor.flatten().tolist()
    shown = [f"{x:.4g}" if type(x) is float else str(x) for x in flat[:most]]
    text = ", ".join(shown) + (", …" if len(flat) > most else "")
    return text if tensor.ndim == 0 else f"[{text}]"
