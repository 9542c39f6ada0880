"""Formulas of number quizzes: parsed here once, evaluated here and on the page.

A formula becomes a tree: a number, a name, or ``[operator, part, part]``. The page gets
the tree as JSON, so it needs no parser, and nothing is ever passed to ``eval``.
``book/_static/quiz.js`` has the same few operators, and a test compares the two.
"""

import ast
import itertools
import math
import operator
import random
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

BINARY = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
FUNCTIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "ceil": math.ceil,
    "floor": math.floor,
    "max": max,
    "min": min,
    "sqrt": math.sqrt,
}
NAME = re.compile(r"[a-z][a-z0-9_]*")
SPAN = re.compile(r"(-?[\d.]+?)\.\.(-?[\d.]+)(?: by ([\d.]+))?")
UNIT = re.compile(r" \[([^\[\]]+)\]")  # behind a number: it is shown, not computed
FEW = 0.05  # as a share of the value: what rounding may change
MOST_DRAWS, MOST_VALUES, FEWEST_DRAWS = 4000, 60, 6


def parse(text: str, names: Collection[str]) -> list | str | float:
    """Return the tree of a formula that may use these names.

    >>> parse("ceil(n / 4) * 2", ["n"])
    ['*', ['ceil', ['/', 'n', 4]], 2]
    >>> parse("n [GB] / 4 [s]", ["n"])
    ['/', 'n', 4]
    """
    try:
        return _tree(ast.parse(UNIT.sub("", text).strip(), mode="eval").body, names)
    except SyntaxError:
        raise ValueError(f"the formula `{text}` is broken") from None
    except ValueError as error:
        raise ValueError(f"the formula `{text}` {error}") from None


def _tree(node: ast.expr, names: Collection[str]) -> list | str | float:
    match node:
        case ast.Constant(value=int() | float() as value) if value is not True:
            return value
        case ast.Name(id=name) if name in names:
            return name
        case ast.Name(id=name):
            raise ValueError(f"uses {name}, which :values: does not list")
        case ast.BinOp(op=op) if type(op) in BINARY:
            return [BINARY[type(op)], _tree(node.left, names), _tree(node.right, names)]
        case ast.UnaryOp(op=ast.USub()):
            return ["-", 0, _tree(node.operand, names)]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS:
            num_args = 2 if name in ("max", "min") else 1
            if len(node.args) != num_args:
                raise ValueError(f"gives {name} {len(node.args)} numbers")
            return [name, *(_tree(arg, names) for arg in node.args)]
    allowed = "numbers, names, + - * / // % **, ceil, floor, max, min and sqrt"
    raise ValueError(f"may hold {allowed} only")


def evaluate(tree: list | str | float, values: dict) -> float:
    """Compute the value of a tree.

    >>> evaluate(parse("7 // n", ["n"]), {"n": 2})
    3
    """
    if isinstance(tree, str):
        return values[tree]
    if not isinstance(tree, list):
        return tree
    return FUNCTIONS[tree[0]](*(evaluate(part, values) for part in tree[1:]))


def spans(text: str) -> dict[str, list]:
    """Read the numbers that each name may take.

    >>> spans("ranks = 2, 4; samples = 100..120 by 10")
    {'ranks': [2, 4], 'samples': [100, 110, 120]}
    """
    found = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, _, given = map(str.strip, part.partition("="))
        span = SPAN.fullmatch(given)
        try:
            numbers = _span(*span.groups()) if span else _numbers(given.split(","))
        except ValueError:
            numbers = []
        if not NAME.fullmatch(name) or name in FUNCTIONS or name in found:
            raise ValueError(f":values: needs a new lower-case name in `{part}`")
        if not 1 < len(numbers) <= MOST_VALUES:
            raise ValueError(
                f":values: needs 2 to {MOST_VALUES} numbers in `{part}`, "
                "such as 2, 4, 8 or 1..9 or 100..200 by 10"
            )
        found[name] = numbers
    return found


def _numbers(texts: Iterable[str]) -> list:
    return [float(text) if "." in text else int(text) for text in texts]


def _span(low: str, high: str, by: str | None) -> list:
    low, high, by = _numbers([low, high, by or "1"])
    return [low + i * by for i in range(int((high - low) / by) + 1)] if by else []


def rounded(value: float, digits: int) -> float:
    """Round half up, by the same steps as on the page and so with the same bits."""
    return math.floor(value * 10**digits + 0.5) / 10**digits


def shown(value: float, digits: int) -> str:
    """Write a number as the reader sees it.

    >>> shown(24, 0), shown(27.25, 1), shown(27.04, 1)
    ('24', '27.3', '27')
    """
    return (
        f"{rounded(value, digits):.{digits}f}".rstrip("0").rstrip(".")
        if digits
        else (str(int(rounded(value, 0))))
    )


def exact(value: float, digits: int) -> bool:
    """Tell whether a number is shown as it is.

    >>> exact(2.5, 1), exact(2.25, 1), exact(0.1 + 0.2, 1)
    (True, False, True)
    """
    return abs(rounded(value, digits) - value) <= 1e-9 * max(1, abs(value))


def reach(value: float, digits: int) -> float:
    """Return how far from a number an answer may be: half a unit if it is rounded.

    >>> round(reach(2.25, 1), 6), round(reach(2.5, 1), 6)
    (0.05, 0.0)
    """
    half = 0 if exact(value, digits) else 0.5 / 10**digits
    return half + 1e-9 * max(1, abs(value))


@dataclass(frozen=True)
class Numbers:
    """One number quiz: the values of its names, the right formula, typical slips.

    Results are shown with ``digits`` decimal places at most, and what is shown is what
    a reader may answer.
    """

    values: dict[str, list]
    right: list | str | float
    wrong: list
    digits: int = 0

    def results(self, values: dict) -> list[float]:
        """Compute the right number, and then that of each slip."""
        return [evaluate(tree, values) for tree in (self.right, *self.wrong)]

    def apart(self, values: dict) -> bool:
        """Tell whether no answer can stand for two of the results."""
        results = self.results(values)
        if not all(math.isfinite(result) for result in results):
            raise ValueError(f"a formula is not finite with {values}")
        spans = [(result, reach(result, self.digits)) for result in results]
        return all(
            abs(a - b) > to_a + to_b + 1e-6
            for (a, to_a), (b, to_b) in itertools.combinations(spans, 2)
        )

    def judge(self, values: dict, given: float) -> int:
        """Return 0 if an answer is right, 1, 2, ... for a slip, else -1."""
        near = [abs(given - r) <= reach(r, self.digits) for r in self.results(values)]
        return near.index(True) if any(near) else -1

    def texts(self, values: dict) -> dict[str, str]:
        """Return what a page shows of these values and their results."""
        found = {name: str(value) for name, value in values.items()}
        for i, result in enumerate(self.results(values)):
            whole = exact(result, self.digits)
            found[f"result_{i}"] = shown(result, self.digits)
            found[f"about_{i}"] = "" if whole else "≈ "
            found[f"equals_{i}"] = "=" if whole else "≈"
        return found

    def draws(self) -> list[dict]:
        """List the combinations that tell the answers apart, from a few thousand."""
        names, total = list(self.values), math.prod(map(len, self.values.values()))
        every = itertools.product(*self.values.values())
        if total > MOST_DRAWS:
            pick = random.Random(0)
            lists = self.values.values()
            every = [[pick.choice(one) for one in lists] for _ in range(MOST_DRAWS)]
        try:
            given = [dict(zip(names, one, strict=True)) for one in every]
            found = [values for values in given if self.apart(values)]
        except (ArithmeticError, TypeError) as error:
            raise ValueError(f"a formula fails for some :values:: {error}") from None
        if len(found) < FEWEST_DRAWS or 2 * len(found) < len(given):
            raise ValueError(
                f"only {len(found)} of {len(given)} draws of :values: tell the right "
                "number from each slip"
            )
        for result in itertools.chain.from_iterable(map(self.results, found)):
            if abs(rounded(result, self.digits) - result) > FEW * abs(result):
                text = shown(result, self.digits)
                raise ValueError(f"{result:g} would be shown as {text}: add :digits:")
        return found
