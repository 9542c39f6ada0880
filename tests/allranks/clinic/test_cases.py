"""A clinic case: how its file is read or refused, and how a played cell is judged."""

import pytest

from allranks import clinic
from allranks.clinic.play import play

FIELDS = {
    "class": "DDP",
    "symptom": "crash",
    "runs on": "2 ranks",
    "chapter": "ch5_ddp",
    "signature": "no wheels",
}
PARTS = {
    "You see": "smoke.",
    "Cause": "no wheels.",
    "Cure": "wheels.",
    "Next time": "look below.",
}
CELLS = {
    "broken": "if rank == 1:\n    raise RuntimeError('no wheels')",
    "fixed": "print('it rolls')",
    "signs": "# no wheels",
}
LAW = "invariant: it rolls"
SILENT = {"symptom": "silent", "beyond": "nobody looks below"}


@pytest.fixture
def case(tmp_path):
    """Return a function that writes a case with changes (None omits), and reads it."""

    def make(fields=(), parts=(), cells=(), title="No wheels."):
        fields, parts = FIELDS | dict(fields), PARTS | dict(parts)
        head = [f"{name}: {text}" for name, text in fields.items() if text]
        prose = [f"{name}: {text}\n" for name, text in parts.items() if text]
        doc = "\n".join([title, "", *head, "", *prose])
        cells = (CELLS | dict(cells)).items()
        body = [f"# %% {name}\n{code}\n" for name, code in cells if code is not None]
        path = tmp_path / "no-wheels.py"
        path.write_text(f'r"""{doc}"""\n\n' + "\n".join(body))
        return clinic.read(path)

    return make


def test_a_file_is_read(case):
    """Fields, paragraphs, cells, commands, signs and links are read."""
    cells = {"given": "import torch", "broken": None, "broken: torchrun train.py": "x"}
    signs = {"signs": "# no wheels\n# maybe: wheel\n# echo: smoke\n# with: brake"}
    links = {"Links": "https://a.b/1 (a wheel is lost)\nhttps://a.b/2"}
    found = case(parts=links, cells=cells | signs)
    assert (found.slug, found.title) == ("no-wheels", "No wheels.")
    assert found.given == "import torch"
    assert found.fields["signature"] == "no wheels"
    assert found.parts["Cause"] == "no wheels."
    assert found.commands == {"broken": "torchrun train.py"}
    assert found.links == [("https://a.b/1", "a wheel is lost"), ("https://a.b/2", "")]
    assert [kind for kind, _ in found.signs] == ["full", "maybe", "echo", "with"]
    assert [sign for _, sign in found.signs][:2] == ["no wheels", "wheel"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"title": ""}, "a title"),
        ({"fields": {"class": "cars"}}, "class: one of launch, .*, not 'cars'"),
        ({"fields": {"symptom": "smell"}}, "symptom: one of crash, .*, not 'smell'"),
        ({"fields": {"runs on": "the moon"}}, "runs on: .*, not 'the moon'"),
        ({"fields": {"chapter": ""}}, "a field chapter"),
        ({"fields": {"signature": ""}}, "a field signature"),
        ({"parts": {"Cause": ""}}, "a paragraph that begins with 'Cause'"),
        ({"cells": {"fixed": None}}, "a cell # %% fixed"),
        ({"cells": {"brocken": "x"}}, "no cell # %% brocken"),
        ({"cells": {"signs": None}}, "signs: a regular expression"),
        ({"cells": {"signs": "# with: smoke"}}, "signs: a regular expression"),
        ({"cells": {"signs": "#no wheels"}}, "signs of the form"),
        ({"fields": {"symptom": "slow"}}, "a cell # %% invariant"),
        (
            {"fields": {"symptom": "slow"}, "cells": {"invariant": "assert False"}},
            "a sentence after # %% invariant",
        ),
        (
            {"fields": {"symptom": "silent"}, "cells": {LAW: "pass"}},
            "either a field guard, or a field beyond",
        ),
        (
            {"fields": {"symptom": "silent", "guard": "x"}, "cells": {LAW: "pass"}},
            "both a field guard and a cell # %% guarded",
        ),
        ({"fields": {"runs on": "quoted"}}, "a paragraph that begins with 'Links'"),
        (
            {"fields": {"runs on": "quoted"}, "parts": {"Links": "https://a.b"}},
            "a cell # %% quoted",
        ),
    ],
)
def test_an_incomplete_file_is_refused(case, change, complaint):
    with pytest.raises(ValueError, match=f"no-wheels.py needs {complaint}"):
        case(**change)


def test_a_crash_is_told_from_its_cure(case):
    """The broken cell raises with its message, and the fixed one runs."""
    broken, fixed = play(case(), "broken"), play(case(), "fixed")
    assert broken.status == "raises"
    assert "rank 1: RuntimeError: no wheels" in broken.text
    assert (fixed.status, fixed.text) == ("runs", "ranks 0–1: it rolls")


def test_a_dead_rank_is_contained(case):
    """A process that dies below Python is a result, and the player goes on."""
    broken = case(cells={"broken": "import os\nif rank == 1:\n    os.abort()"})
    outcome = play(broken, "broken")
    assert outcome.status == "dies"
    assert "rank 1 was killed by SIGABRT" in outcome.text


def test_a_hang_is_noticed_without_a_timeout(case):
    """If no rank moves any more, it is a hang, and nothing waits for a timeout."""
    found = case({"symptom": "hang"}, cells={"broken": "if rank: dist.barrier()"})
    outcome = play(found, "broken")
    assert outcome.status == "hangs"
    assert "rank 1 waits in `if rank: dist.barrier()`" in outcome.text


def test_the_invariant_runs_after_both(case):
    """It runs on the same ranks, with their variables; its failure shows figures."""
    law = "assert wheels == 4, f'{wheels} wheels instead of 4'"
    found = case(
        SILENT, cells={"broken": "wheels = 3", "fixed": "wheels = 4", LAW: law}
    )
    broken = play(found, "broken")
    assert broken.status == "violates"
    assert broken.text == "ranks 0–1: AssertionError: 3 wheels instead of 4"
    assert play(found, "fixed").status == "runs"


def test_a_command_runs_on_each_rank(case):
    """Each rank starts the command, as on a machine of its own, with one free port."""
    code = "import sys\nprint('here', *sys.argv[1:])\nsys.exit('no wheels')"
    cells = {"broken": None, "broken: python train.py {rank} {port}": code}
    outcome = play(case(cells=cells), "broken")
    assert outcome.status == "raises"
    lines = outcome.text.splitlines()
    here = [line.rpartition(" ") for line in lines if "here" in line]
    assert [who for who, _, _ in here] == ["rank 0: here 0", "rank 1: here 1"]
    ports = {port for _, _, port in here}
    assert len(ports) == 1 and int(ports.pop()) > 1023
    assert "rank 1: (exit code 1)" in lines


def test_what_differs_between_runs_is_not_shown(case):
    """Ports, process ids, folders and addresses are replaced by names."""
    text = "'[127.0.0.1]:4711 (pid: 4712), pid(s) 4713, 0x7f00aa00, ' + os.getcwd()"
    found = case(cells={"broken": f"import os\nif rank:\n    raise OSError({text})"})
    assert "[127.0.0.1]:PORT (pid: PID), pid(s) PID, 0xADDRESS, /FOLDER" in (
        play(found, "broken").text
    )
