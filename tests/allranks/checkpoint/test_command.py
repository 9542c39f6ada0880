"""The command answers wrong use in one sentence, and never ends in a traceback."""

import os
import subprocess
import sys

import pytest

from allranks.base.paths import ROOT
from allranks.checkpoint.command import main
from tests.allranks.checkpoint.files import WEIGHT, refusal


@pytest.mark.parametrize(
    "argv",
    ["", "inspect", "convert a", "demo", "convert a b c", "inspect a --most -1"],
)
def test_of_usage(argv):
    """argparse refuses it in its own sentence, with exit code 2."""
    with pytest.raises(SystemExit) as end:
        main(argv.split())
    assert end.value.code == 2


@pytest.mark.parametrize(
    "where, code, said",
    [
        (">/dev/full", 1, "cannot print: [Errno 28] No space left on device"),
        ("| true", 141, ""),
    ],
)
def test_output_that_nobody_takes_is_no_traceback(where, code, said, saved):
    """A full disk is reported, a reader that has left is not; neither exits with 0."""
    command = f"{sys.executable} -m allranks.checkpoint inspect {saved({'w': WEIGHT})}"
    command = ["bash", "-c", f"{command} {where}; exit ${{PIPESTATUS[0]}}"]
    end = subprocess.run(command, stderr=subprocess.PIPE, cwd=ROOT, timeout=60)
    assert (end.returncode, end.stderr.decode().strip()) == (code, said)


def test_ctrl_c_while_torch_is_imported_is_no_traceback(tmp_path):
    """Ctrl-C ends the import, which takes longer than the work, without a word."""
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    command = [sys.executable, "-m", "allranks.checkpoint", "inspect", "x"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    how = {"env": environment, "cwd": ROOT, "capture_output": True, "timeout": 60}
    end = subprocess.run(command, **how)
    assert (end.returncode, end.stdout, end.stderr) == (130, b"", b"")


@pytest.mark.parametrize(
    "argv, said",
    [
        ("inspect in.pt --entry nope", "found all for a state dict, not 'nope'"),
        ("inspect in.pt --entry=", "not ''"),
        ("convert in.pt folder", "folder exists: name another"),
        ("convert in.pt folder --force", "folder exists: name another"),
        ("convert in.pt in.pt2", "in.pt2 exists: --force replaces it"),
        ("convert in.pt /dev/null --force", "/dev/null exists: name another"),
        ("convert in.pt no/out.pt", "cannot write no/out.pt"),
        (f"convert in.pt {'x' * 300}", "File name too long"),
        ("demo in.pt", "in.pt exists: --force replaces it"),
        ("demo no/demo.pt", "cannot write no/demo.pt"),
        ("inspect a\\nb", "a\\nb: no such regular file"),
    ],
    ids=range(11),
)
def test_a_refusal_names_the_value_and_the_way_out(argv, said, saved, monkeypatch):
    """It names the value and what to do instead, and no file changes or appears."""
    path = saved({"all": {"w": WEIGHT}})
    saved({"w": WEIGHT}, "in.pt2")
    monkeypatch.chdir(path.parent)
    (path.parent / "folder").mkdir()
    before = sorted(os.listdir())
    words = [word.replace("\\n", "\n") for word in argv.split()]
    answer = refusal(*words)
    assert said in answer and "damaged" not in answer and len(answer) < 400
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("argv", [["inspect", ""], ["convert", "in.pt", ""]], ids=str)
def test_an_empty_name_is_a_variable_that_nobody_set(argv, capsys):
    """An empty name does not mean the current folder, so it is refused."""
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2 and "'' is no file" in capsys.readouterr().err
