"""What the page's scripts and Python go by stands in Python alone."""

import json
import re

import pytest

from allranks.base.paths import ROOT
from allranks.diagnose import described, page, signs

STATIC = ROOT / "book" / "_static"
SCRIPTS = "diagnose.js", "described.js", "diagnose_box.js"
GIVEN = re.compile(
    r'\b([A-Z][A-Z_0-9]+)\b[A-Z_0-9, \]]* = (?:[(\[]*[-\d"/{]|new RegExp)'
)


def forms(value: object) -> list[str]:
    """List how a script would write the texts of a constant that are no short words."""
    if isinstance(value, dict | list | tuple):
        parts = value.values() if isinstance(value, dict) else value
        return [form for part in parts for form in forms(part)]
    if isinstance(value, re.Pattern):
        text = signs._plain(value)["pattern"]
        found = [text.replace("/", r"\/"), json.dumps(text)[1:-1]]
        return [form for form in found if len(form) > 6]
    return [json.dumps(value)] if isinstance(value, str) and len(value) > 4 else []


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_constant_stands_twice(name):
    """A script gets a number, a word or an expression that Python has from there."""
    script = re.sub(r"(?:^| )// .*", "", (STATIC / name).read_text("utf8"), flags=re.M)
    names = set()
    for module in (*page.NEEDED, described):
        constants = {n: v for n, v in vars(module).items() if n.isupper()}
        names |= constants.keys()
        assert [form for form in forms([*constants.values()]) if form in script] == []
    assert {*GIVEN.findall(script)} & names == set()


def test_each_constant_that_is_sent_is_used():
    """What no script asks for would make the page heavier."""
    script = "".join((STATIC / name).read_text("utf8") for name in SCRIPTS[::2])
    sent = page.table([])["constants"]
    names = {*sent, *sent.pop("KIND")} - {"KIND"}
    assert [name for name in names if script.count(name) < 2] == []
    script = (STATIC / "described.js").read_text("utf8")
    assert [name for name in described.NEEDED.split() if script.count(name) < 2] == []
