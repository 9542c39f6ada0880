"""What tests of pictures share: each use of a picture on a page, and its source."""

import json
import re
from importlib import import_module

import pytest

from allranks import pictures
from allranks.base.paths import ROOT
from allranks.base.picture import Picture
from book._ext.runs import bench, outside, records
from book._ext.runs import picture as directive

FENCE = re.compile(
    r"^```\{picture\} (\S+)\n((?::\w+: [^\n]*\n)*)(.+?)\n```$", re.MULTILINE | re.DOTALL
)
OPTION = re.compile(r"^:(\w+): (.*)$", re.M)


def source(kind: str, text: str) -> object:
    """Return what an option of ``{picture}`` leads to."""
    if kind == "given":
        return text
    if kind == "bench":
        return bench.find(json.loads((ROOT / bench.DATA).read_text()), text)
    if kind == "hang":
        tool, hang = text.split()
        return json.loads((ROOT / directive.HANGS).read_text())["hangs"][hang][tool][
            "words"
        ]
    if kind == "outside":
        return outside.groups(json.loads((ROOT / outside.DATA).read_text()), text)
    if kind == "glue":
        path, _, name = text.partition("::")
        return directive.glued(ROOT / path.removeprefix("../"), name)
    commands = [records.Command(line) for line in text.split(" && ")]
    folder = ROOT / directive.RUNS
    return "\n".join(f"$ {c.line}\n{records.read(folder, c)}" for c in commands)


def uses() -> list[tuple[str, str, str]]:
    """List (function, kind of source, its text) of every picture on a page."""
    found = []
    for page in sorted(ROOT.glob("book/*.md")):
        for name, options, _ in FENCE.findall(page.read_text("utf8")):
            (kind, text), *_ = [*OPTION.findall(options), ("", "")]
            found.append((name, kind, text))
    return found


USES = uses()


def draw(name: str, *sources: object) -> Picture:
    """Draw a picture by its name on a page."""
    module, _, function = name.partition(".")
    return getattr(import_module(f"{pictures.__name__}.{module}"), function)(*sources)


def refuses(name: str, old: str, new: str) -> None:
    """Assert that a picture refuses an output that contradicts its title."""
    kind, text = next(use[1:] for use in USES if use[0] == name)
    output = source(kind, text)
    changed = re.sub(old, new, output)
    assert changed != output
    with pytest.raises(ValueError, match="contradict the title"):
        draw(name, changed)
