"""Scripts on live ranks, which have torch already: a launch imports it W + 1 times.

The pages' commands start the same scripts by torchrun (tests/book/test_commands.py).
"""

from allranks import Ranks
from allranks.base.paths import ROOT

JOB = """
import runpy
import sys
from contextlib import nullcontext

import job

sys.argv = [script, *flags]
job.ranks = lambda args: nullcontext((rank, world_size, device))  # the group is there
_ = runpy.run_path(script, run_name="__main__")
"""


def run_script(name: str, world_size: int, *flags: str) -> list[list[str]]:
    """Run a script of scripts/ on fresh live ranks; return the lines of each rank.

    Raises:
        RanksError: with what the ranks say, if they refuse.
    """
    with Ranks(world_size) as ranks:
        return run_on(ranks, name, *flags)


def run_on(ranks: Ranks, name: str, *flags: str) -> list[list[str]]:
    """Run a script on ranks which have imported more than torch, such as sklearn."""
    script = str(ROOT / "scripts" / f"{name}.py")
    ranks.push({"script": script, "flags": flags})
    ranks.run(JOB, quiet=True)
    return [printed.splitlines() for printed in ranks.outputs]
