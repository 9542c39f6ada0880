"""Specimens: how a file is read, and what counts as an error, a warning or a hang."""

import json
from textwrap import dedent

import pytest

from allranks import clinic
from allranks.clinic import errata
from allranks.clinic.play import play

FIELDS = "runs on: {place}\noutcome: {outcome}\nchapter: ch4_ranks"
HEAD = f'"""A slip.\n\n{FIELDS}\n\nWhy.\n"""\n'


@pytest.fixture
def specimen(tmp_path):
    """Return a function that writes a specimen and reads it."""

    def make(cells: str, place="one process", outcome="raises", name="a1_slip"):
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD.format(place=place, outcome=outcome) + dedent(cells))
        return errata.read(path)

    return make


def test_a_file_is_read(specimen):
    """Title, fields, prose, and the code of each cell are read."""
    found = specimen(
        """
        # %% given
        x = 1

        # %% wrong: torchrun train.py
        y

        # %% right
        x
        """
    )
    assert (found.row, found.title, found.prose) == ("a1", "A slip.", "Why.")
    assert (found.given, found.cells) == ("x = 1", {"wrong": "y", "right": "x"})
    assert found.commands == {"wrong": "torchrun train.py"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"cells": "# %% wrong\n"}, "cells"),
        ({"cells": "# %% right\n# %% wrong\n"}, "cells"),
        ({"place": "the moon"}, "runs on"),
        ({"outcome": "explodes"}, "outcome"),
    ],
)
def test_a_file_that_lacks_something_is_refused(specimen, change, complaint):
    with pytest.raises(ValueError, match=f"a1_slip.py needs {complaint}"):
        specimen(**{"cells": "# %% wrong\n\n# %% right\n"} | change)


def test_rows_are_in_order(specimen, tmp_path):
    """a2 comes before a10, and a before b."""
    for name in "b1_x", "a10_x", "a2_x":
        specimen("# %% wrong\n\n# %% right\n", name=name)
    assert [s.row for s in errata.folder(tmp_path)] == ["a2", "a10", "b1"]


PLAYS = {
    "an error": ("1 / 0", "raises", "ZeroDivisionError: division by zero"),
    "a warning": (
        "import warnings\nwarnings.warn('old\\n  name')",
        "warns",
        "UserWarning: old name",
    ),
    "a result": ("print(1)\n2 + 3", "runs", "1\n5"),
    "no group": ("import os\n'RANK' in os.environ", "runs", "False"),
    "an exit": ("raise SystemExit('no')", "raises", "SystemExit: no"),
}


@pytest.mark.parametrize(("code", "status", "text"), PLAYS.values(), ids=PLAYS)
def test_one_process(specimen, code, status, text):
    found = specimen(f"# %% wrong\n{code}\n# %% right\n1\n")
    outcome = play(found, "wrong")
    assert (outcome.status, outcome.text) == (status, text)


def test_ranks_speak_for_themselves(specimen):
    """Equal texts are told once, and output from before an error is kept."""
    cells = "# %% wrong\nprint('here')\nif rank:\n    {}[rank]\n# %% right\nrank\n"
    found = specimen(cells, place="3 ranks")
    text = "ranks 0–2: here\nrank 1: KeyError: 1\nrank 2: KeyError: 2"
    assert play(found, "wrong").text == text
    assert play(found, "right").text == "rank 0: 0\nrank 1: 1\nrank 2: 2"


def test_a_hang_says_who_waits_where(specimen):
    cells = "# %% wrong\nif rank:\n    dist.barrier()\n# %% right\nrank\n"
    outcome = play(specimen(cells, place="2 ranks", outcome="hangs"), "wrong")
    assert outcome.status == "hangs"
    assert "rank 1 waits in `dist.barrier()`" in outcome.text


def test_a_command_runs_its_file(specimen):
    """The outcome has the ranks' lines in order, a child's error and the exit code."""
    cells = """
        # %% wrong: N=1 python train.py
        import os, sys

        print("N is", os.environ["N"])
        sys.exit("ValueError: no")

        # %% right: torchrun --standalone --nproc-per-node 2 train.py
        import os

        print("rank", os.environ["RANK"])
        """
    found = specimen(cells)
    wrong = play(found, "wrong")
    assert wrong.status == "raises"
    assert wrong.text == "N is 1\nValueError: no\n(exit code 1)"
    assert play(found, "right").text == "rank 0\nrank 1"


def test_records_follow_the_files(specimen, tmp_path):
    """A record is written, read back, and dropped when its file is gone."""
    found = specimen("# %% wrong\n\n# %% right\n")
    with pytest.raises((LookupError, FileNotFoundError)):
        clinic.recorded(found)
    outcomes = {cell: clinic.Outcome("runs", cell) for cell in found.cells}
    clinic.record(found, outcomes)
    assert clinic.recorded(found) == outcomes
    found.path.unlink()
    other = specimen("# %% claim\n\n# %% fact\n", name="b1_other")
    clinic.record(other, {c: clinic.Outcome("runs", "") for c in other.cells})
    assert list(json.loads((tmp_path / clinic.RECORDS).read_text())) == ["b1_other"]
