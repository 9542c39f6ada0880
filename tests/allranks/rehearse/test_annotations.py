"""A team's CI rehearses its script: the page's workflow, in such a repository."""

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
from allranks.rehearse.annotations import commands
from allranks.rehearse.findings import Finding

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


def test_a_pull_request_fails_at_the_line_until_it_is_cured(repository):
    """The example's one mistake is an error beside its line; the cure passes."""
    script = repository / "train_cuda.py"
    source = script.read_text("utf8")
    line = 1 + source.splitlines().index(LOOP)
    code, out = rehearse(repository)
    [told] = [text for text in out.splitlines() if text.startswith("::")]
    where = f"file=train_cuda.py,line={line},title=rehearsal%3A no-set-epoch"
    assert code == 3 and told.startswith(f"::error {where}::"), out
    assert (repository / "rehearsal.html").is_file()

    cured = f"    sampler.set_epoch(epoch)\n{LOOP}"
    script.write_text(source.replace(LOOP, cured), "utf8")
    code, out = rehearse(repository)
    assert code == 0 and "\n::" not in out, out


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
    error = {"type": "ValueError", "text": "50 %\nof: it", "line": f"{tmp_path}/a.py:3"}
    records = [{"error": error}, {"error": error}, {"error": None}]
    assert list(commands(records, [Finding("idle-gpu", "one, idle")], False)) == [
        "::error file=a.py,line=3,title=rehearsal%3A ValueError::50 %25%0Aof: it",
        "::warning title=rehearsal%3A idle-gpu::one, idle",
    ]
