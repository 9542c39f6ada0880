"""``hints("ex5_1")``: three hints and the solution, folded until they are asked for."""

import re
from collections.abc import Callable
from html import escape

from allranks.exercises import files
from allranks.exercises.files import Exercise


class Help:
    """Hints and solution, which are folded in a notebook and on a page.

    A terminal shows as many as were asked for.
    """

    def __init__(self, exercise: Exercise, level: int) -> None:
        self._exercise, self._level = exercise, level

    def _repr_html_(self) -> str:
        name = self._exercise.name
        parts = [
            f"<details><summary>Hint {number}</summary><p>{_inline(hint)}</p></details>"
            for number, hint in enumerate(self._exercise.hints, 1)
        ]
        code = _highlight(self._exercise.code("solution"))
        parts.append(f"<details><summary>Solution</summary>{code}</details>")
        head = f'<div class="exercise-help" data-exercise="{name}">'
        return "\n".join([head, *parts, "</div>"])

    def __repr__(self) -> str:
        hints, name = self._exercise.hints, self._exercise.name
        lines = [f"Hint {n}: {hint}" for n, hint in enumerate(hints, 1)][: self._level]
        if self._level > len(hints):
            lines.append(f"Solution:\n{self._exercise.code('solution')}")
        else:
            lines.append(f'(hints("{name}", {self._level + 1}) says more)')
        return "\n".join(lines)


def hints(exercise: str | Callable, level: int = 1) -> Help:
    """Show the help for an exercise: ``hints("ex5_1")``.

    Args:
        exercise: its name, or its function.
        level: for a terminal, 1 to 3 for that many hints, 4 for the solution too.
    Raises:
        ValueError: if there is no such exercise, or no such level.
    """
    name = exercise if isinstance(exercise, str) else getattr(exercise, "__name__", "")
    if level not in (1, 2, 3, 4):
        raise ValueError(f"level {level!r}: 1, 2 and 3 are hints, 4 is the solution")
    return Help(files.find(name or repr(exercise)), level)


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _highlight(code: str) -> str:
    """Write code with the classes that the pages style, or plain without Pygments."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ImportError:
        return f"<pre>{escape(code)}</pre>"
    return highlight(code, PythonLexer(), HtmlFormatter(wrapcode=False)).strip()
