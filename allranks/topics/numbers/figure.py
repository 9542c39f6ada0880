"""What a number becomes in formats of few bits, and what adding another one does."""

import itertools
from fractions import Fraction
from typing import Any

import traitlets

from allranks.base.picture import Picture, table
from allranks.topics.kit.explorable import Explorable
from allranks.topics.numbers import sums
from allranks.topics.numbers.runs import ask_torch
from allranks.topics.numbers.sums import FORMATS, decimal, decode


class Numbers(Explorable):
    """A number, and one to add, in six formats.

    Traits:
        number: as text: decimal, or a power of two such as 2^-24.
        add: the number to add, likewise.
        form: the format to look at closely, a key of ``FORMATS``.
    """

    name = "numbers"

    number = traitlets.Unicode("1").tag(sync=True)
    add = traitlets.Unicode("1e-4").tag(sync=True)
    form = traitlets.Unicode("bf16").tag(sync=True)

    @staticmethod
    def compute(**state: Any) -> dict[str, Any]:
        """Say what the number becomes in each format, and what the sum is.

        ``formats`` has for each format its bits, the number that they stand for with
        its neighbors below and above, the gap to the next, the rounding error, whether
        it is within the format's reach, the sum, and whether the sum is what the number
        was, although something else was added.

        Raises:
            ValueError: if a text is no number, or there is no such format.

        >>> facts = Numbers.compute(number="256", add="1", form="bf16")
        >>> facts["formats"]["bf16"]["sum"], facts["formats"]["fp32"]["sum"]
        ('256', '257')
        """
        typed = [sums.read(name, state[name]) for name in ("number", "add")]
        if state["form"] not in FORMATS:
            names = ", ".join(FORMATS)
            raise ValueError(f"form must be one of {names}, not “{state['form']}”")
        facts = {
            "exact": [decimal(-x if minus else x) for minus, x in typed],
            "formats": {key: _one(form, *typed) for key, form in FORMATS.items()},
        }
        # The sum as fractions: what no format here can round.
        exact = sum(-x if minus else x for minus, x in typed)
        facts["exact"].append(decimal(exact))
        return {**facts, "summary": _summary(state, facts)}

    @staticmethod
    def picture(**state: Any) -> Picture:
        """Set a table of the formats: bits, the number, its error, the sum."""
        facts = Numbers.compute(**state)
        rows = [
            [FORMATS[key].label, one["bits"], one["value"], one["error"], one["sum"]]
            for key, one in facts["formats"].items()
        ]
        exact = facts["exact"]
        heads = [
            f"{exact[0]} in",
            "bits",
            "stored as",
            "error",
            f"after adding {exact[1]}",
        ]
        return table(heads, rows)

    def measure(self) -> dict[str, Any]:
        """Ask torch for the same bits, and for the same sums."""
        found, facts = ask_torch(self.number, self.add), self.facts["formats"]
        apart = [
            f"{key}: {facts[key]['bits']} here, {bits} in torch"
            for key, (bits, _) in found.items()
            if facts[key]["bits"] != bits and facts[key]["kind"] != "NaN"
        ]
        apart += [
            f"{key}: the sum is {facts[key]['sum']} here, {total} in torch"
            for key, (_, total) in found.items()
            if facts[key]["sum"] != total
        ]
        names = ", ".join(FORMATS[key].label for key in found)
        summary = f"torch has the same bits and sums in {names}."
        if apart:
            summary = "; ".join(apart) + ". torch rounds to float32 before."
        return {"equal": not apart, "summary": summary}


def _one(
    form: sums.Format, number: tuple[bool, Fraction], more: tuple[bool, Fraction]
) -> dict[str, Any]:
    """Return the facts about one format."""
    minus, size = number
    code = sums.encode(form, size, minus)
    total = sums.add(form, code, sums.encode(form, more[1], more[0]))
    value = decode(form, code)
    below, above = sums.neighbors(form, code)
    shown = [_show(form, one) for one in (below, code, above, total)]
    # Infinity and NaN have no distance from the number that was typed, nor a next one.
    error = "–" if value is None else "none"
    gap = "–"
    if value is not None:
        beside = decode(form, below if above is None else above)
        gap = decimal(abs(value - beside), 3)
    if value is not None and abs(value) != size:
        error = f"{decimal(100 * abs(abs(value) - size) / size, 2)} %"
    return {
        "bits": sums.bits(form, code),
        "kind": sums.kind(form, code),
        "below": shown[0],
        "value": shown[1],
        "above": shown[2],
        "error": error,
        "gap": gap,
        "fits": size <= decode(form, form.top) and bool(size) == (value != 0),
        "sum": shown[3],
        "lost": bool(more[1]) and total == code and value is not None,
        "least": decimal(decode(form, 1)),
        "normal": decimal(decode(form, 1 << form.mantissa)),
        "most": decimal(decode(form, form.top)),
    }


def _show(form: sums.Format, code: int | None) -> str:
    """Write the number of a code; a dash if there is none."""
    if code is None:
        return "–"
    x = decode(form, code)
    minus = "-" if code >= form.sign else ""
    if x is None:
        kind = sums.kind(form, code)
        return kind if kind == "NaN" else minus + kind
    return decimal(x) if x else f"{minus}0"


def _summary(state: dict, facts: dict) -> str:
    one, label = facts["formats"][state["form"]], FORMATS[state["form"]].label
    number, more, exact = facts["exact"]
    words = f"{number} in {label} is {one['value']}"
    words += {
        "zero": ": too small, and rounded to zero. " if number != "0" else ". ",
        "inf": f": the largest number is {one['most']}. ",
        "subnormal": ", a subnormal number of fewer bits. ",
        "normal": ". ",
    }[one["kind"]]
    if one["value"].lstrip("-") == one["most"] and one["error"] != "none":
        words = f"{words[:-2]}, the largest number there is. "
    near = [x for x in (one["below"], one["above"]) if x != "–"]
    if one["kind"] != "inf":
        many = "s are" if near[1:] else " is"
        words += f"Its neighbor{many} {' and '.join(near)}. "
    words += f"Adding {more} gives {one['sum']}{', as before' * one['lost']}. "
    labels = [(FORMATS[key].label, f) for key, f in facts["formats"].items()]
    lost = [label for label, f in labels if f["lost"] and f["fits"]]
    if lost:
        words += f"It is rounded away in {', '.join(lost)}."
    else:
        words += f"Exactly it would be {exact}."
    # A number beyond a format's end is no matter of rounding, so it is named apart.
    beyond = [label for label, f in labels if not f["fits"]]
    if beyond:
        words += f" {number} does not fit in {', '.join(beyond)}."
    return words


def cases() -> list[dict]:
    """Return states, impossible ones too, in which Python and JavaScript must agree."""
    forms = list(FORMATS)
    first = "1 0.1 -0 -3.7 255.5 256 257 448 463.9 464 480 1e4 61439 65504 65519 65520"
    first += " 65536 -7e4 3.3e38 3.5e38 -1e39 1e-4 1e-7 5.9e-8 2^-24 2^-25 2**-9 2**-10"
    first += " 1.00390625 1.01171875 1.5e-45 7e-46 1e-50 6.1e-5 16777217 0.3333333333"
    first += " 3.14159265358979323846 2^127 1.99999999999 000.50 .5 5. +8 1E+3"
    first += " 999999999 1234567890 1e9 1e-5 9.99e-6 0.99999999995"
    more = "1e-4", "0", "-0", "1", "-1", "1e-3", "-1e39", "2^-9", "3e38", "0.003"
    pairs = list(itertools.product(first.split(), more))
    good = [(a, b, forms[i % 6]) for i, (a, b) in enumerate(pairs)]
    words = ["", " ", "x", "1e", "1..2", "--1", "0x10", "1,5", "inf", "nan", "1e4000"]
    words += ["1e401", "2^-401", "3^2", "2^", "1 2", "e5", ".", "+", "1_000", "٣", "½"]
    bad = [(word, "1", "bf16") for word in words]
    bad += [("1", word, "fp16") for word in words]
    bad += [("9" * 41, "1", "bf16"), ("1", "1", "fp64"), ("1", "1", "")]
    keys = Numbers().state_names()
    return [dict(zip(keys, values, strict=True)) for values in (*good, *bad)]
