"""What a page offers for download runs where nothing lies beside it."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from allranks.base.paths import ROOT
from book._ext.runs import executed
from book._ext.runs.one_file import one_file

SCRIPTS = sorted(ROOT.glob("scripts/[cs]*_*.py"))
TORCHRUN = "-m", "torch.distributed.run", "--standalone"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_name_is_defined_in_the_one_file(script):
    """It imports no neighbor, and uses no name that it does not define."""
    text = one_file(script)
    beside = {path.stem for path in ROOT.glob("scripts/*.py")}
    taken = re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)
    assert taken and not beside & set(taken)
    command = "-m", "ruff", "check", "--isolated", "--select=F", "-q", "-"
    check = subprocess.run(
        [sys.executable, *command], input=text, capture_output=True, text=True
    )
    assert check.stdout == ""
    assert max(map(len, text.splitlines())) <= 79
    assert ("gc.disable()" in text) == ("gc.enable()" in text)  # around its imports


@pytest.mark.parametrize(
    ("name", "world_size", "flags"),
    [
        ("ch5_ddp", 2, "--epochs=1 --samples=64"),
        ("ch8_flat", 1, "--steps=2"),
        ("ch9_data", 1, "--stop=20"),
    ],
)
def test_runs_from_an_empty_folder(name, world_size, flags, tmp_path):
    """Three of them do, started by torchrun, where no package of ours is found."""
    script = tmp_path / f"{name}.py"
    script.write_text(one_file(ROOT / "scripts" / script.name), "utf8")
    shutil.copy(ROOT / "scripts" / "frankenstein.txt", tmp_path)
    (tmp_path / "allranks.py").write_text("raise ImportError('not here')")
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RANK")}
    words = f"--nproc-per-node={world_size}", script.name, *flags.split()
    command = [sys.executable, *TORCHRUN, *words]
    run = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"[rank 0/{world_size}] ")


def test_a_name_with_two_meanings_is_refused(tmp_path):
    """The one file would mix them up."""
    (tmp_path / "job.py").write_text('"""Job."""\nimport torch\n\ndef say(): pass\n')
    script = tmp_path / "ch1_x.py"
    bodies = "def say(): job.say()", "def f(): say = job.say()", "job.shout()"
    for number, body in enumerate(bodies):
        script.write_text(f'"""Chapter."""\nimport job\n\n{body}\n')
        os.utime(script, ns=(0, number))  # read anew
        with pytest.raises(ValueError, match=r"neighbor's name|has no 'shout'"):
            one_file(script)


def test_a_run_is_of_what_the_script_takes_from_beside_it(tmp_path):
    """A record is stale when a neighbor's function that it calls has changed."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    script = folder / "ch1_x.py"
    script.write_text('"""Chapter."""\nimport job\n\njob.say()\n')
    digests = []
    for number, (said, other) in enumerate([(1, 1), (1, 2), (2, 2)]):
        said, other = f"def say(): return {said}", f"def stop(): return {other}"
        text = f'"""Job."""\nimport torch\n\n{said}\n\n{other}\n'
        (folder / "job.py").write_text(text)
        os.utime(folder / "job.py", ns=(0, number))  # read anew
        digests.append(executed.digest(script))
    assert digests[0] == digests[1] != digests[2]
