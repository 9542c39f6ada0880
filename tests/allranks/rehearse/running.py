"""Name our own scripts in commands, and read reports."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
REHEARSE = [sys.executable, "-m", "allranks.rehearse", "--timeout", "90"]
CHILD = ["-m", "allranks.rehearse.child"]  # what it puts before a script


def sentences(report):
    """Return a report without its line breaks, which come wherever a line is full."""
    return " ".join(report.split())


def torchrun(script, *words, ranks=2):
    """Return a torchrun command for a script of ours."""
    return "torchrun", f"--nproc-per-node={ranks}", str(SCRIPTS / script), *words


def forked(*jobs, ranks=2):
    """Return a command for jobs of ours one after another, such as "ddp.py item"."""
    return str(SCRIPTS / "forked.py"), str(ranks), *jobs
