"""Slurm on the nodes: slurmctld and munged on the login node, slurmd on each node.

All that Slurm writes lies on a file system in memory that ends with the cluster. What a
job prints lies in the folder from which it was submitted, as on any cluster.
"""

import os
import pwd
import secrets
import shutil
import subprocess
import time
from pathlib import Path

from allranks.cluster.plan import LOGIN, Plan

HOME = Path("/mnt/slurm")
PROGRAMS = "munged", "slurmctld", "slurmd", "sbatch"
PACKAGES = "slurmctld, slurmd, slurm-client and munge"  # Debian's and Ubuntu's names
CONF = """\
ClusterName=laptop
SlurmctldHost={login}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={home}/munge/socket,cred_expire=5
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/%n.log
ProctrackType=proctrack/linuxproc
JobCompType=jobcomp/filetxt
JobCompLoc={home}/jobcomp.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
EnforcePartLimits=ALL
KillWait=10
"""
READY_S = 30  # until all nodes are idle; a second or two on a quiet machine


def missing() -> str:
    """Return the sentence that says what to install; "" if all is there."""
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    lacks = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    return f"{', '.join(lacks)} not found: install {PACKAGES}" if lacks else ""


def write(plan: Plan) -> None:
    """Write Slurm's configuration, and the key that its processes share."""
    for name in "state", "munge":
        (HOME / name).mkdir(parents=True)
    key = HOME / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    user = pwd.getpwuid(os.getuid()).pw_name
    lines = [CONF.format(home=HOME, login=LOGIN, user=user)]
    nodes = f"node[0-{plan.num_nodes - 1}]" if plan.num_nodes > 1 else "node0"
    size = "CPUs=2 Sockets=1 CoresPerSocket=2"
    lines += [f"NodeName={nodes} {size}"]
    lines += [f"PartitionName=laptop Nodes={nodes} Default=YES MaxTime=60", ""]
    (HOME / "slurm.conf").write_text("\n".join(lines))


def daemon(words: list[str], name: str) -> subprocess.Popen:
    """Start a process of the login node; what it prints goes into a file."""
    with open(HOME / f"{name}.out", "wb") as file:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environ()
        )


def environ() -> dict[str, str]:
    """Return the environment in which Slurm's commands find this cluster."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    return {**env, "SLURM_CONF": f"{HOME}/slurm.conf"}


def start(plan: Plan) -> None:
    """Start the login node's part: munged answers before slurmctld asks."""
    write(plan)
    munged = ["munged", "--foreground", "--force", f"--socket={HOME}/munge/socket"]
    munged += [f"--key-file={HOME}/munge.key", f"--pid-file={HOME}/munge/pid"]
    munged += [f"--seed-file={HOME}/munge/seed", f"--log-file={HOME}/munged.log"]
    daemon(munged, "munged")
    end = time.monotonic() + READY_S
    while not (HOME / "munge/socket").exists() and time.monotonic() < end:
        time.sleep(0.02)
    daemon(["slurmctld", "-D"], "slurmctld")


def slurmd(node: int) -> list[str]:
    """Return what a node of a Slurm cluster runs."""
    line = f"exec slurmd -D -N node{node} -f {HOME}/slurm.conf"
    return ["sh", "-c", f"{line} > {HOME}/slurmd-{node}.out 2>&1"]


def wait(num_nodes: int) -> None:
    """Wait until all nodes are idle; leave with Slurm's own words if they never are."""
    end, sinfo = time.monotonic() + READY_S, ["sinfo", "-h", "-t", "idle", "-o", "%D"]
    while time.monotonic() < end:
        done = subprocess.run(sinfo, capture_output=True, text=True, env=environ())
        if done.stdout.strip() == str(num_nodes):
            return
        time.sleep(0.1)
    logs = [path for path in HOME.glob("*.out") if path.stat().st_size]
    said = "\n".join(f"{path.stem}: {path.read_text()[-600:]}" for path in logs)
    raise SystemExit(f"cluster: Slurm's nodes are not up after {READY_S} s\n{said}")
