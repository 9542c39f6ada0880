"""The doctor prints a line per check and an exit code, and never a traceback."""

import ast
import importlib
import json
import re
import subprocess
import sys
import time

import pytest

from allranks import doctor
from allranks.base.paths import PACKAGE, ROOT
from allranks.doctor.registry import CHECKS
from tests.allranks.doctor.asking import BARE, DOCTOR, look, start

LINE = re.compile(r"(ok|warn|fail) {1,4} [\w-]+ +\S| {19}(-> )?\S")
MODULES = sorted((PACKAGE / "doctor").rglob("*.py"))


def test_prints_one_line_per_check_and_what_to_do():
    """Lines have one form, each check is shown or skipped, and two ranks do compute."""
    code, out, err = start(*DOCTOR)
    assert (code, err) == (0, "")
    *lines, total, skipped = out.splitlines()
    assert all(LINE.match(line) for line in lines), out
    shown = [line.split()[1] for line in lines if line[0] != " "]
    skipped = skipped.partition(" for ")[2].split(", ")
    assert sorted(shown + skipped) == sorted(CHECKS)
    assert re.search(r"^ok +all_reduce +1 \+ 2 = 3; .+ GB/s at 4 KiB", out, re.M)
    assert re.match(r"\S+: \d+ ok, \d+ warn, 0 fail, \d+ skip, in \d", total)


def test_every_warning_says_what_to_do(machine):
    """In JSON, every problem has a fix, and the exit code shows a failure."""
    machine("ecc_error")
    code, out, _ = start(*DOCTOR, "--json", OMP_NUM_THREADS="0", RANK="1")
    report = json.loads(out)
    assert code == 1 and report["fail"] and report["warn"]
    assert [line["name"] for line in report["checks"]] == list(CHECKS)
    for line in report["checks"]:
        assert line["why"].endswith(".") and line["found"]
        assert line["fix"] or line["status"] in ("ok", "skip"), line


WRONG = [
    ["--only", "gpu"],
    ["--only", ""],  # as from a script's variable that was never set
    ["--only", " , "],
    ["--only", "\n"],
    ["--only", "NUMPY"],
    ["--only", "numpy,é"],
    ["--only", "x" * 3000],
    ["--nope"],
    ["now"],
    [""],
]


@pytest.mark.parametrize("flags", WRONG, ids=lambda flags: repr(flags)[:30])
def test_answers_a_wrong_argument_in_a_sentence(flags, capsys):
    """It is one line, also for a long value, with the value and where to look."""
    with pytest.raises(SystemExit) as end:
        doctor.main(flags)
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1 and len(said) < 700
    assert repr(flags[-1].removeprefix("numpy,"))[:20] in said
    assert said.endswith("(--help tells what there is)\n")


def test_only_may_be_given_twice_and_counts_once(capsys):
    """A second --only adds to the first, and a check that is named twice runs once."""
    doctor.main(["--only", "numpy, clock", "--only", "numpy,", "--list"])
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["numpy", "clock"]


def test_lists_every_check_with_its_reason(capsys):
    assert doctor.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CHECKS) >= 28
    assert doctor.main(["--list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(CHECKS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_is_python_3_8(path):
    """The doctor runs on Python 3.8, since clusters are older than laptops."""
    ast.parse(path.read_text("utf8"), feature_version=(3, 8))


def test_runs_where_nothing_is_installed(capsys):
    """The doctor and the package's import need the standard library only."""
    doctor.main(["--list"])
    assert start(*BARE, *DOCTOR, "--list") == (0, capsys.readouterr().out, "")
    for module in "torch", "psutil", "cloudpickle", "numpy", "IPython":
        importlib.import_module(module)  # it exists: only the flags hide it
        code, _, err = start(*BARE, "-c", f"import {module}")
        assert code == 1 and "ModuleNotFoundError" in err


@pytest.mark.parametrize(
    ("module", "error", "fix"),
    [
        ("torch", "ModuleNotFoundError: No module named 'torch'", "pip install torch"),
        ("torch", "OSError: libcudart.so.13", "pip install --force-reinstall torch"),
        ("numpy", "ModuleNotFoundError: no numpy", "pip install numpy"),
    ],
)
def test_runs_without_what_it_looks_for(module, error, fix, tmp_path):
    """Without torch or numpy, or with broken ones, a line says so and the rest runs."""
    kind, _, text = error.partition(": ")
    (tmp_path / f"{module}.py").write_text(f"raise {kind}({text!r})")
    code, out, err = start(*DOCTOR, "--json", PYTHONPATH=str(tmp_path))
    lines = {line["name"]: line for line in json.loads(out)["checks"]}
    assert lines[module]["found"] == error and lines[module]["fix"].startswith(fix)
    assert lines["loopback"]["status"] == "ok"
    assert code == (1 if module == "torch" else 0)
    assert "Traceback" not in err


def test_under_torchrun_one_rank_of_a_machine_reports(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert doctor.main(["--json"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "local rank 3: local rank 0 reports\n")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert look("started")["started"][1].startswith("by torchrun, 8 times here")
    assert look("variables")["variables"][:2] == ("ok", "set by torchrun")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")  # stale variables must be reported
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert doctor.main(["--only", "variables"]) == 0
    assert "unset LOCAL_RANK LOCAL_WORLD_SIZE" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="writes to /dev/full")
@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        (">/dev/full", 1, "cannot print what was found: [Errno 28] No space left"),
        (">&-", 0, ""),
        ("| true", 141, ""),
        ("2>/dev/full --only nope", 1, ""),
    ],
)
def test_output_that_cannot_be_written_is_no_traceback(where, code, said):
    """A full disk is reported, a reader that has left is not, without a traceback."""
    command = f"{sys.executable} -m allranks.doctor --only numpy {where}"
    command += "; exit ${PIPESTATUS[0]}"
    how = {"cwd": ROOT, "stderr": subprocess.PIPE, "timeout": 60}
    end = subprocess.run(["bash", "-c", command], **how)
    assert end.returncode == code and end.stderr.count(b"\n") == bool(said)
    assert said in end.stderr.decode()


LINGERS = """
import threading, time
from allranks.doctor import command, registry
def linger():
    threading.Thread(target=time.sleep, args=(60,), daemon=False).start()
    return "ok", "it has started something"
registry.check("lingers", "Libraries start threads.")(linger)
command.script()
"""


def test_what_a_check_leaves_running_does_not_keep_the_doctor():
    """Python would wait for the thread at exit, but the doctor ends once it is done."""
    before = time.monotonic()
    code, out, _ = start(*BARE, "-c", LINGERS, "--only", "lingers")
    assert code == 0 and out.startswith("ok    lingers      it has started")
    assert time.monotonic() - before < 30


def test_ctrl_c_while_torch_is_imported_is_no_traceback(tmp_path):
    """Ctrl-C during the import, which takes most of the time, ends without a word."""
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    end = start(*DOCTOR, "--only", "torch", PYTHONPATH=str(tmp_path))
    assert end == (130, "", "")
