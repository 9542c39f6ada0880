"""What stands in Python must not stand in JavaScript again."""

import json
import re
from types import ModuleType

NOTE = re.compile(r"(?:^| )// .*", re.MULTILINE)
# A name that a script gives a number, a text, an expression, or a list of them.
GIVEN = re.compile(
    r'\b([A-Z][A-Z_0-9]*)\b[A-Z_0-9, \]]* = (?:[(\[]*[-\d"/{`]|new RegExp)'
)


def twice(script: str, modules: list[ModuleType]) -> set[str]:
    """Return what a script repeats of the constants of Python modules."""
    script, found = NOTE.sub("", script), set()
    names = {*GIVEN.findall(script)}
    for module in modules:
        constants = {n: value for n, value in vars(module).items() if n.isupper()}
        found |= names & constants.keys()
        found |= {text for text in _written([*constants.values()]) if text in script}
    return found


def _written(value: object) -> list[str]:
    """List how a script would write the texts of a constant, mere names left out."""
    if isinstance(value, dict | list | tuple):
        parts = value.values() if isinstance(value, dict) else value
        return [form for part in parts for form in _written(part)]
    if isinstance(value, re.Pattern):
        text = value.pattern
        text = text.decode() if isinstance(text, bytes) else text
        forms = [text.replace("/", r"\/"), json.dumps(text)[1:-1]]
        return [form for form in forms if len(form) > 6]
    is_text = isinstance(value, str) and re.search(r"[^\w.]", value)
    return [json.dumps(value, ensure_ascii=False)] if is_text and value[1:] else []
