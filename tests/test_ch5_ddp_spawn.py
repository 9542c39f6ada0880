"""Chapter 5 without torchrun trains the same, from a plain python command."""

import os
import re
import subprocess
import sys
import time

import psutil
import pytest

from allranks import launch
from scripts import ch5_ddp_spawn

FLAGS = ["--epochs=2", "--samples=90"]
ENV = {
    name: value
    for name, value in os.environ.items()
    if not re.match(r"RANK|LOCAL_|WORLD_|MASTER_|TORCHELASTIC|OMP_", name)
}


def start(*flags):
    """Start the script as a reader does, without a launcher or its variables."""
    return subprocess.Popen(
        [sys.executable, ch5_ddp_spawn.__file__, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
    )


def test_trains_what_torchrun_trains(tmp_path):
    """Losses and accuracies are those of torchrun's ranks, digit by digit."""
    process = start(*FLAGS)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, "")
    run = launch("ch5_ddp", 2, *FLAGS, f"--checkpoint={tmp_path / 'c.pt'}")
    rate = re.compile(r"\d+ samples/s")
    assert rate.sub("", out) == rate.sub("", f"{run}\n")


def test_a_refusal_ends_all():
    """The parent says one sentence, without a traceback."""
    process = start("--nproc-per-node=3", "--samples=2")
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (1, "")
    assert err == "3 ranks > 2 samples: start fewer\n"  # before any rank starts


@pytest.mark.parametrize("victim", ["rank", "parent"])
def test_a_killed_process_ends_all(victim):
    """If a rank or the parent is killed, no process is left within 10 s."""
    process = start("--epochs=1000", "--samples=64")
    assert process.stdout.readline().startswith("[rank 0/2] epoch=0 ")
    parent = psutil.Process(process.pid)
    family = parent.children(recursive=True)
    ranks = [p for p in family if "spawn_main" in " ".join(p.cmdline())]
    assert len(ranks) == 2
    killed = time.monotonic()
    (parent if victim == "parent" else ranks[1]).kill()
    _, err = process.communicate(timeout=60)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert (alive, process.returncode != 0) == ([], True)
    assert time.monotonic() - killed < 10
    if victim == "rank":
        assert "ended all ranks: process 1 terminated with signal SIGKILL" in err


def test_refuses_an_impossible_number_of_ranks():
    """The parent refuses it before any rank starts."""
    with pytest.raises(SystemExit, match=r"^--nproc-per-node 0: must be 1 to 64$"):
        ch5_ddp_spawn.parse_args(["--nproc-per-node=0"])
