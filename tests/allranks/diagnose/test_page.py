"""What the page's scripts and Python go by stands in Python alone."""

import pytest

from allranks.base.paths import ROOT
from allranks.diagnose import described, page
from tests.twins import twice

STATIC = ROOT / "book" / "_static"
SCRIPTS = "diagnose.js", "described.js", "diagnose_box.js"


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_constant_stands_twice(name):
    """A script gets a number, a word or an expression that Python has from there."""
    script = (STATIC / name).read_text("utf8")
    assert twice(script, [*page.NEEDED, described]) == set()


def test_each_constant_that_is_sent_is_used():
    """What no script asks for would make the page heavier."""
    script = "".join((STATIC / name).read_text("utf8") for name in SCRIPTS[::2])
    sent = page.table([])["constants"]
    names = {*sent, *sent.pop("KIND")} - {"KIND"}
    assert [name for name in names if script.count(name) < 2] == []
    script = (STATIC / "described.js").read_text("utf8")
    assert [name for name in described.NEEDED.split() if script.count(name) < 2] == []
