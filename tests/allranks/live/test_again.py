"""A reader runs a cell again, and it shows what it showed before."""

import json
import re

import pytest

from allranks.base.paths import ROOT

NOTEBOOKS = {path.stem: path for path in sorted(ROOT.glob("notebooks/*.ipynb"))}
LIVE = re.compile(r"(%load_ext.*\s)?%%?ranks\b(?! stop)")
# Trainings of several seconds that keep nothing for the next one.
SLOW = ("train_both(0", "curves_of({", "curves_of(hooks)")
WARNED = re.compile(r"^.*Warning: .*\n.*\n", re.MULTILINE)  # and the line of code
FEWER = ("steps=3", "steps=1")  # as much to see, in a third of the time
CHANCE = ("folders", "logs")  # variables with a new folder's name, and with times


def live_cells(name: str) -> list[str]:
    """Return a notebook's cells on ranks; not those that have to fail, or are slow."""
    cells = json.loads(NOTEBOOKS[name].read_text("utf8"))["cells"]
    cells = [
        c for c in cells if "raises-exception" not in c["metadata"].get("tags", [])
    ]
    texts = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    texts = [t for t in texts if LIVE.match(t) and not any(s in t for s in SLOW)]
    return [t.replace(*FEWER) for t in texts]


@pytest.mark.replay("notebooks/{name}.ipynb")
@pytest.mark.parametrize("name", [name for name in NOTEBOOKS if live_cells(name)])
def test_a_cell_that_is_run_again_shows_the_same(shared_kernel, name):
    """So do the variables that its ``--out`` fills."""
    for cell in live_cells(name):
        out = re.search(r"--out (\w+)", cell)
        look = f"print({out[1]})" if out and out[1] not in CHANCE else ""
        seen = []
        for _ in range(2):
            (printed, error), (value, _) = map(shared_kernel.run, (cell, look))
            assert not error, (cell, error)
            seen.append((WARNED.sub("", printed), value))
        assert seen[0] == seen[1], cell
