"""Slurm on the nodes: jobs run on them under their names, and end with the cluster."""

import signal
import subprocess
import sys

import pytest

from allranks.cluster import slurm
from allranks.cluster.command import in_namespaces, obstacle
from allranks.cluster.plan import LOGIN, Plan
from tests.allranks.cluster.test_cluster import CLUSTER, processes, wait_until

WHY = obstacle() or slurm.missing()
pytestmark = pytest.mark.skipif(bool(WHY), reason=f"no Slurm here: {WHY}")


def on_login(line: str, num_nodes: int = 2, **how) -> subprocess.CompletedProcess:
    """Run a shell line on the login node of a new cluster."""
    words = [*CLUSTER, str(num_nodes), "--slurm", "--", "bash", "-c", line]
    return subprocess.run(words, capture_output=True, text=True, **how)


def test_a_job_runs_on_its_nodes(tmp_path):
    """A submitted job writes where it was submitted; its steps are on all nodes."""
    (tmp_path / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --nodes 3 --output out-%j\n"
        "srun --label bash -c 'echo $(hostname) $SLURM_PROCID of $SLURM_NTASKS'\n"
    )
    done = on_login("sinfo -h -o %D; sbatch --wait job.sh; exit 5", 3, cwd=tmp_path)
    assert done.returncode == 5, done.stdout + done.stderr
    assert done.stdout == "3\nSubmitted batch job 1\n"
    lines = sorted((tmp_path / "out-1").read_text().splitlines())
    assert lines == [f"{n}: node{n} {n} of 3" for n in range(3)]


def test_a_job_ends_with_the_cluster(tmp_path):
    """What still runs is killed with its node, and no file of Slurm's is left."""
    line = "sbatch --output /dev/null --wrap 'sleep 53135'; sleep 5313"
    words = [*CLUSTER, "1", "--slurm", "--", "bash", "-c", line]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=tmp_path) as run:
        wait_until(lambda: processes("53135", "sleep"), "the job did not start")
        run.send_signal(signal.SIGTERM)
        assert run.wait() == 128 + signal.SIGTERM
    wait_until(lambda: not processes("53135"), f"left: {processes('53135')}")
    wait_until(lambda: not processes(str(slurm.HOME)), "a process of Slurm's is left")
    assert not slurm.HOME.exists() and not list(tmp_path.iterdir())


def test_slurms_own_words_if_it_does_not_start(tmp_path):
    """Where slurmctld cannot start, its reason is printed, and all ends."""
    find = (
        "import os; import allranks.cluster.slurm as s; s.READY_S = 3\n"
        "s.CONF += 'NoSuchOption=1\\n'\n"
        "import allranks.cluster.machine as m; os._exit(m.main())"
    )
    plan = Plan(1, ["true"], slurm=True).dump()
    words = [sys.executable, "-c", find, LOGIN, plan]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    said = in_namespaces(words, **pipes).communicate(timeout=60)[0].decode()
    assert "Slurm's nodes are not up" in said and "NoSuchOption" in said
