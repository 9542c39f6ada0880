"""The doctor in one file has nothing else in it, and answers as the package does."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from allranks.base.paths import PACKAGE, ROOT
from allranks.doctor import pack
from tests.allranks.doctor.asking import BARE, DOCTOR, start

ALONE = "-S", "-I"  # without installed packages, variables and the current folder
SPAWNING = """
import gc, multiprocessing
gc.set_threshold(50_000, 20, 20)
get = multiprocessing.get_context
multiprocessing.get_context = lambda method: get("spawn")
"""


def make(*arguments, cwd):
    """Run make as from a shell, without the flags that ``make test`` would pass on."""
    env = {k: v for k, v in os.environ.items() if not re.match("MAKE|MFLAGS", k)}
    done = subprocess.run(
        ["make", *arguments], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the file that ``make doctor.pyz`` writes, in a tree with little else."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "Makefile", tree)
    shutil.copytree(PACKAGE / "doctor", tree / "allranks" / "doctor")
    said = make("doctor.pyz", f"PYTHON={sys.executable}", cwd=tree)
    assert said.startswith("_build/doctor.pyz: ")
    return tree / "_build" / "doctor.pyz"


def test_make_lists_the_target():
    """make lists the command that the page names."""
    assert re.search(r"^make doctor\.pyz +\S", make(cwd=ROOT), re.M)


def test_holds_the_doctor_and_nothing_else(built):
    """It contains no other layer, no test, no compiled file, and not its maker."""
    modules = {str(p.relative_to(PACKAGE)) for p in PACKAGE.glob("doctor/**/*.py")}
    with zipfile.ZipFile(built) as archive:
        held = {name for name in archive.namelist() if not name.endswith("/")}
        outer = archive.read("allranks/__init__.py").decode()
    ours = {f"allranks/{name}" for name in modules - {"doctor/pack.py"}}
    assert held == ours | {"__main__.py", "allranks/__init__.py"}
    assert "import" not in outer


def told(out):
    """Return a report without what differs from run to run."""
    report = json.loads(out)
    del report["seconds"]
    for line in report["checks"]:
        line["found"] = re.sub(r"[\d.]+", "9", line["found"])
    return report


def test_answers_as_the_package_does(built):
    """Where nothing is installed, both report a missing torch and check the rest."""
    code, out, err = start(*ALONE, built, "--json")
    assert (code, err) == (1, "")
    assert told(out) == told(start(*BARE, *DOCTOR, "--json")[1])
    assert json.loads(out)["fail"] == ["torch"]


def test_answers_a_wrong_flag_in_a_sentence(built):
    """The sentence and the exit code are those of the package."""
    code, out, err = start(*ALONE, built, "--nope")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (code, out, err) == start(*BARE, *DOCTOR, "--nope")


def test_two_ranks_start_from_it_where_a_fork_is_no_choice(built, tmp_path):
    """On macOS, and once CUDA has started, each rank finds its code in the file."""
    (tmp_path / "sitecustomize.py").write_text(SPAWNING)
    code, out, _ = start(built, "--only", "all_reduce", PYTHONPATH=str(tmp_path))
    assert code == 0 and "1 + 2 = 3" in out


def test_goes_through_a_pipe_to_the_machine_that_runs_it(built, tmp_path):
    """The page's line for ssh works; here its shell runs on this machine."""
    command = f"cat >doctor.pyz && {sys.executable} -S doctor.pyz --only loopback"
    with built.open("rb") as file:
        done = subprocess.run(
            ["sh", "-c", command], stdin=file, cwd=tmp_path, capture_output=True
        )
    assert done.returncode == 0 and done.stdout.startswith(b"ok    loopback")


def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path, capsys):
    """The sentence names the file, and a folder in its place stays."""
    pack.main([str(tmp_path / "new" / "doctor.pyz")])
    assert "copy it to a machine" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=f"cannot write {tmp_path}: Is a directory"):
        pack.main([str(tmp_path)])
