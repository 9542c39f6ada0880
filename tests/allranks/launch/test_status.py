"""A cell that works in silence counts the seconds, if a reader is before it."""

import json
import re

import pytest

from allranks.base.paths import ROOT
from tests.allranks.live.test_manners import messages

NOTEBOOK = json.loads((ROOT / "notebooks/app_rehearse.ipynb").read_text("utf8"))
CELLS = ["".join(c["source"]) for c in NOTEBOOK["cells"] if c["cell_type"] == "code"]
REHEARSE = "\n".join(c for c in CELLS if "def rehearse" in c or "SCRIPT =" in c)
# What the book's own cells do for longer than a reader likes to wait for a sign.
SILENT = {
    "(sleep.py runs on 1 ranks": "from allranks import launch\nlaunch('{path}')",
    "(2 live ranks at work": (
        "import time\nfrom allranks import Ranks\n"
        "with Ranks(2) as ranks:\n    [ranks.run(time.sleep, 1) for _ in range(3)]"
    ),
    "(the rehearsal runs": (
        f"{REHEARSE}\n"
        "def run(*words, **options): subprocess.run(['sleep', '3'])\n"
        "import subprocess\nrehearse(SCRIPT)"
    ),
}


@pytest.mark.parametrize("what", SILENT)
def test_the_seconds_are_counted_and_taken_back(shared_kernel, tmp_path, what):
    """From the second one on, and nothing is left of it when the cell is over."""
    texts = displayed(shared_kernel, tmp_path, what)
    told = re.escape(what) + r": (\d+) s\)"
    counted = [int(re.fullmatch(told, text)[1]) for text in texts[:-1]]
    assert counted[0] >= 2 and counted == sorted(set(counted)) and texts[-1] == ""


@pytest.mark.parametrize("what", list(SILENT)[:1])
def test_nothing_is_counted_where_nobody_watches(shared_kernel, tmp_path, what):
    """What is executed for a file has results alone."""
    assert displayed(shared_kernel, tmp_path, what, stdin=False) == []


def displayed(kernel, folder, what: str, **how: bool) -> list[str]:
    """Run a silent cell; return what it has displayed, one text after the other."""
    script = folder / "sleep.py"
    script.write_text("import time; time.sleep(3)")
    found = messages(kernel, SILENT[what].replace("{path}", str(script)), **how)
    return [c["data"]["text/plain"] for _, kind, c in found if "display" in kind]
