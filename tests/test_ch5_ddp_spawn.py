"""Chapter 5 without torchrun trains the same, from a plain python command."""

import os
import re
import subprocess
import sys
import time

import psutil
import pytest

from allranks import Ranks
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


def train(flags):
    """Train with chapter 5's first script on a live rank."""
    import torch
    import torch.distributed as dist

    from scripts import ch5_ddp

    place = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    ch5_ddp.train(ch5_ddp.parse_args(flags), *place)


def test_trains_what_torchrun_trains(tmp_path):
    """Losses and accuracies are those of torchrun's script, digit by digit."""
    process = start(*FLAGS)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, "")
    with Ranks(2) as ranks:
        ranks.run(train, [*FLAGS, f"--checkpoint={tmp_path / 'c.pt'}"], quiet=True)
        said = "".join(ranks.outputs)
    rate = re.compile(r"\d+ samples/s")
    assert out and rate.sub("", out) == rate.sub("", said)


def test_more_ranks_than_samples_are_refused(monkeypatch):
    """The parent says one sentence before any rank starts."""
    monkeypatch.setattr(sys, "argv", ["x", "--nproc-per-node=3", "--samples=2"])
    monkeypatch.setattr(ch5_ddp_spawn.mp, "spawn", None)  # it is not called
    with pytest.raises(SystemExit, match=r"^3 ranks > 2 samples: start fewer$"):
        ch5_ddp_spawn.main()


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
