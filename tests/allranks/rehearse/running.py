"""Run rehearsals of our own scripts."""

import os
import sys
import tempfile
from pathlib import Path

from allranks.launch.torchrun import starter

SCRIPTS = Path(__file__).parent / "scripts"
REHEARSE = [sys.executable, "-m", "allranks.rehearse", "--timeout", "90"]


def rehearse(*words, **variables):
    """Run the command; its own --timeout leaves no process behind."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        env = os.environ | variables
        code = starter()([*REHEARSE, *words], env=env, stdout=out, stderr=err).wait()
        return code, *(file.seek(0) or file.read() for file in (out, err))


def sentences(report):
    """Return a report without its line breaks, which come wherever a line is full."""
    return " ".join(report.split())


def torchrun(script, *words, ranks=2):
    """Return a torchrun command for a script of ours."""
    return "torchrun", f"--nproc-per-node={ranks}", str(SCRIPTS / script), *words
