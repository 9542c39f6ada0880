"""Run rehearsals of our own scripts."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
REHEARSE = [sys.executable, "-m", "allranks.rehearse", "--timeout", "90"]


def rehearse(*words, **variables):
    """Run the command; its own --timeout leaves no process behind."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        env = os.environ | variables
        done = subprocess.run([*REHEARSE, *words], env=env, stdout=out, stderr=err)
        code = done.returncode
        return code, *(file.seek(0) or file.read() for file in (out, err))


def sentences(report):
    """Return a report without its line breaks, which come wherever a line is full."""
    return " ".join(report.split())


def torchrun(script, *words, ranks=2):
    """Return a torchrun command for a script of ours."""
    return "torchrun", f"--nproc-per-node={ranks}", str(SCRIPTS / script), *words
