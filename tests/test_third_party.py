"""The tool that rehearses scripts of others: what it unpacks, and how it judges."""

import importlib.util
import json
import subprocess

import pytest

from allranks.base.paths import ROOT

PART = ROOT / "tests" / "bench" / "third_party" / "__init__.py"
SCRIPT = """
import os, mine, torch
assert os.path.getsize("../data/x.bin") == 8192
print(torch.ones(2, device="cuda").sum().item(), mine.WORD)
"""


@pytest.fixture(scope="module")
def tool():
    """Return the tool's module."""
    spec = importlib.util.spec_from_file_location("third_party", PART)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OURS = 'File "/x/allranks/vgpu/tensor.py", line 3'


@pytest.mark.parametrize(
    ("code", "output", "script", "end"),
    [
        (0, "loss 1", {}, "ran"),
        (0, "loss 1\nFailed\n  rank 1: ...", {}, "failed"),
        (124, "", {"fails": ""}, "hangs"),
        (1, "KeyError: 'X'", {"fails": "KeyError"}, "failed as on GPUs"),
        (1, "needs a real GPU", {"refused": "real GPU"}, "refused"),
        (1, "KeyError: 'Y'", {"fails": "IndexError"}, "failed"),
        (1, OURS, {}, "traceback of ours"),
        (1, OURS.replace("vgpu/tensor", "rehearse/child"), {}, "failed"),
    ],
)
def test_an_end_is_what_it_should_be_or_named(tool, code, output, script, end):
    """A script that cannot end well has to fail with the words that it should."""
    assert tool.judge(code, output, script) == end


def test_a_script_of_a_repository_is_unpacked_and_run(tool, tmp_path, monkeypatch):
    """The commit of the list is taken, not the newest; what is known is kept."""
    repository = tmp_path / "checkouts" / "one+two"
    (repository / "lib").mkdir(parents=True)
    (repository / "src").mkdir()

    def git(*words):
        who = "-c", "user.name=a", "-c", "user.email=a@b"
        command = ["git", "-C", str(repository), *who, *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (repository / "lib" / "mine.py").write_text("WORD = 'listed'", "utf8")
    (repository / "src" / "train.py").write_text(SCRIPT, "utf8")
    git("add", ".")
    git("commit", "-qm", "listed")
    commit = git("rev-parse", "HEAD")
    (repository / "src" / "train.py").write_text("raise ValueError", "utf8")
    git("commit", "-qam", "newer")
    entry = {"repository": "one/two", "commit": commit, "folder": "src", "path": "lib"}
    scripts = [{"command": "python train.py"}, {"command": "python known.py"}]
    entry |= {"files": {"data/x.bin": 60}, "scripts": scripts}
    known = {"repository": "one/two", "folder": "src", "end": "hangs"} | scripts[1]
    for name, value in (
        ("LIST", [entry]),
        ("DATA", {"third_party": {"scripts": [known]}}),
    ):
        path = tmp_path / name
        path.write_text(json.dumps(value), "utf8")
        monkeypatch.setattr(tool, name, path)
    monkeypatch.setenv("CHECKOUTS", str(tmp_path / "checkouts"))
    monkeypatch.setenv("ONLY", "train.py")
    found = tool.run()
    assert [one["end"] for one in found["scripts"]] == ["ran", "hangs"]
    assert (found["num_good"], found["percent"]) == (1, 50)
    assert "| one/two src | `python train.py` | ran |" in tool.report(found)


def test_the_list_says_why_a_script_may_fail():
    """Each repository has a commit, and each expected failure a reason."""
    entries = json.loads((PART.parent / "scripts.json").read_text("utf8"))
    assert all(len(entry["commit"]) == 40 for entry in entries)
    scripts = [script for entry in entries for script in entry["scripts"]]
    assert all("why" in one for one in scripts if {"fails", "refused"} & one.keys())
