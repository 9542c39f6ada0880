"""What a terminal, a page and a pull request show of a rehearsal."""

import copy
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from allranks.base.paths import ROOT
from allranks.rehearse import findings, records, report, tables
from allranks.rehearse.findings import Finding
from allranks.rehearse.records import Failure, Record
from tests.allranks.rehearse.examples import call, change, gpu, healthy
from tests.allranks.rehearse.running import sentences

EXAMPLES = ROOT / "book" / "_examples"
LOOP = "    for x, y in loader:"


@pytest.fixture
def repository(tmp_path):
    """Return a folder with a workflow and a training script."""
    workflows = tmp_path / ".github" / "workflows"
    workflows.mkdir(parents=True)
    shutil.copy(EXAMPLES / "rehearse.yml", workflows)
    shutil.copy(EXAMPLES / "train_cuda.py", tmp_path)
    Path(tmp_path, "requirements.txt").write_text("numpy\n", "utf8")
    return tmp_path


def steps(repository):
    """Return the steps of the workflow's only job."""
    text = (repository / ".github/workflows/rehearse.yml").read_text("utf8")
    [job] = yaml.safe_load(text)["jobs"].values()
    assert job["runs-on"] == "ubuntu-latest"
    return job["steps"]


def rehearse(repository):
    """Run the last command as a runner does; return its exit code and output."""
    [command] = [step["run"] for step in steps(repository) if "strict" in str(step)]
    bin_folder = os.path.dirname(sys.executable)
    env = os.environ | {
        "PATH": os.pathsep.join([bin_folder, os.environ["PATH"]]),
        "GITHUB_WORKSPACE": str(repository),
    }
    done = subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=repository,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_pull_request_fails_at_the_line(repository):
    """The example's one mistake is an error beside its line; app_rehearse cures it."""
    source = (repository / "train_cuda.py").read_text("utf8")
    line = 1 + source.splitlines().index(LOOP)
    code, out = rehearse(repository)
    [told] = [text for text in out.splitlines() if text.startswith("::")]
    where = f"file=train_cuda.py,line={line},title=rehearsal%3A no-set-epoch"
    assert code == 3 and told.startswith(f"::error {where}::"), out
    assert (repository / "rehearsal.html").is_file()


def test_the_workflow_installs_what_it_runs(repository):
    """Its lines of pip name the package as it is called."""
    [install] = [step["run"] for step in steps(repository) if "Install" in str(step)]
    named = [shlex.split(line, comments=True)[2] for line in install.splitlines()[:2]]
    with open(ROOT / "pyproject.toml", "rb") as file:
        own = tomllib.load(file)["project"]["name"]
    assert [Requirement(name).name for name in named] == ["torch", own]


def test_a_failure_is_an_error_and_a_finding_a_warning(monkeypatch, tmp_path):
    """An error of several ranks is told once; no text can end a command early."""
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    error = Failure("ValueError", "50 %\nof: it", f"{tmp_path}/a.py:3")
    told = [Record(error=error), Record(error=error), Record()]
    assert list(
        report.annotations(told, [Finding("idle-gpu", "one, idle")], False)
    ) == [
        "::error file=a.py,line=3,title=rehearsal%3A ValueError::50 %25%0Aof: it",
        "::warning title=rehearsal%3A idle-gpu::one, idle",
    ]


def test_no_batch_fits_if_what_does_not_grow_takes_too_much():
    """Adam's state can be too large for any batch."""
    ranks = healthy()
    ranks[0].gpus[0].growth = records.BatchGrowth(lacking=[(8, 5000, 9)])
    plain = sentences(report.text(ranks, [], "exit code 1 after 2 s"))
    assert "none: what does not grow takes too much" in plain


def test_a_long_cell_breaks_between_its_items():
    """A number stays with its unit, and each line below the first is indented."""
    cell = ", ".join(f"{'x' * n} {n} kB" for n in range(1, 20))
    head, *lines = report._text_table(
        ["GPU", "held by"], [["cuda:0", cell]]
    ).splitlines()
    assert len(lines) > 2 and all(len(line) <= report.WIDTH for line in lines)
    assert all(line.endswith(" kB,") for line in lines[:-1])
    assert {len(line) - len(line.lstrip()) for line in lines[1:]} == {len("  cuda:0  ")}
    assert head.index("held by") == len("  cuda:0  ")


def test_a_long_table_is_cut_unless_all_is_asked_for():
    """What happens in each step comes first."""
    ranks = healthy()
    once = [
        call("broadcast", n, times=1, steps=1, in_backward=False) for n in range(30)
    ]
    ranks[0].collectives = [*once, call("all_reduce", 40)]
    cut, whole = (report.text(ranks, [], "", full) for full in (None, True))
    assert "... and 19 more, which --full shows" in cut
    assert cut.index("all_reduce") < cut.index("broadcast") and "29 B" not in cut
    assert "29 B" in whole and "more, which" not in whole


def test_what_no_step_has_is_not_called_so():
    """Three barriers before two steps are no 1.5 a step."""
    ranks = healthy()
    before = call("barrier", 1, times=3, steps=1, in_backward=False)
    change(ranks[0], num_steps=2, collectives=[before, call("all_reduce", 40, 4, 2)])
    assert [row[3] for row in tables.traffic(ranks).rows] == ["2 a step", "3 in all"]


def test_a_scaler_that_leaves_out_each_step_is_told():
    """No step was taken, so the guard compared nothing, and the report says why."""
    ranks = healthy()
    for one in ranks:
        change(one, num_steps=0, num_scaler_steps=4, guard=records.GuardNotes())
    assert "GradScaler left out each step" in report.guarded(ranks)[0]


def test_the_report_and_the_page_say_all():
    """Failures come with the clinic's diagnosis; the page escapes what it shows."""
    ranks = healthy()
    ranks[1].gpus = [gpu(0, "train.py:5", 512), gpu(1)]  # on two GPUs
    text = "Expected all tensors to be on the same device, but found at least two <b>"
    log = f"Traceback (most recent call last):\nRuntimeError: {text}\n"
    ranks[1].error = Failure("RuntimeError", text, "project/train.py:7", log)
    found = findings.judge(copy.deepcopy(ranks), num_gpus=2)
    brief = report.text(ranks, found, "exit code 1 after 2 s")
    assert brief.splitlines()[:2] == [
        "Rehearsal: exit code 1 after 2 s; rank 1 failed",
        "Findings: 1 (stray-memory at train.py:5)",
    ]
    assert "--full" in brief and "Memory at the peak" not in brief
    plain = sentences(report.text(ranks, found, "exit code 1 after 2 s", full=True))
    assert "rank 1: train.py:7: RuntimeError: Expected all" in plain
    assert "[stray-memory] train.py:5: rank 1" in plain
    assert "node0 cuda:1" in plain and "2.05 kB" in plain and "models no real" in plain
    made = report.html(ranks, found, "exit code 1 after 2 s")
    assert "two &lt;b&gt;" in made and "<b>" not in made and "http" not in made
