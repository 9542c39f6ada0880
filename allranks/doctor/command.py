"""The tool ``python -m allranks.doctor``: its flags, its report and its exit code.

Each check gets one line: ok, warn or fail, what was found, and what to do about it. The
exit code is 1 if a check fails, 2 for wrong arguments, and else 0. If torch is missing,
the tool says so and checks the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import NoReturn

from allranks.doctor import report
from allranks.doctor.facts import env, integer
from allranks.doctor.running import CHECKS, examine


def refuse(message: str) -> NoReturn:
    """Exit with code 2 and one sentence, shortened if the wrong value is long."""
    if len(message) > 600:
        message = f"{message[:300]} ... {message[-300:]}"
    sys.stderr.write(f"{message} (--help tells what there is)\n")
    sys.exit(2)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the flags; ``only`` becomes the list of the checks to run."""
    name = Path(sys.argv[0]).name
    prog = name if name.endswith(".pyz") else "python -m allranks.doctor"
    about = "Look at one machine of a training job, and say what to change."
    parser = argparse.ArgumentParser(prog, description=about)
    parser.error = refuse
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--list", action="store_true", help="name all checks")
    more = {"metavar": "NAMES", "help": "such as torch,gpus"}
    parser.add_argument("--only", action="append", **more)
    args, other = parser.parse_known_args(argv)
    if other:
        refuse(f"unknown argument {other[0]!r}")
    asked = ",".join(CHECKS if args.only is None else args.only)
    args.only = list(dict.fromkeys(re.findall(r"[^,\s]+", asked)))
    for name in args.only or [asked]:
        if name not in CHECKS:
            refuse(f"--only {name!r}: there are {', '.join(CHECKS)}")
    return args


def main(argv: list[str] | None = None) -> int:
    """Examine this machine, print what was found, and return the exit code.

    Args:
        argv: the command line; None for that of this process.
    """
    args, start = parse_args(argv), time.perf_counter()
    if args.list:
        whys = {name: CHECKS[name].why for name in args.only}
        lines = [f"{name:12} {why}" for name, why in whys.items()]
        print(json.dumps(whys, indent=1) if args.json else "\n".join(lines))
        return 0
    # Under torchrun or mpirun each rank runs this, and one report per machine is
    # enough. LOCAL_RANK alone may be left over in a shell, so torchrun's id must be
    # there.
    local_rank = env("LOCAL_RANK") if env("TORCHELASTIC_RUN_ID") else ""
    local_rank = local_rank or env("OMPI_COMM_WORLD_LOCAL_RANK", "0")
    if integer(local_rank):
        sys.stderr.write(f"local rank {local_rank}: local rank 0 reports\n")
        return 0
    found = []
    for name in args.only:
        # A check may take seconds, so each result is shown as soon as it is there.
        found.append(examine(name))
        if not args.json and found[-1]["status"] != "skip":
            report.show(found[-1])
    took = time.perf_counter() - start
    if args.json:
        print(report.as_json(found, took))
    else:
        report.sum_up(found, took)
    return 1 if any(facts["status"] == "fail" for facts in found) else 0


def script() -> NoReturn:
    """Run as a program, and end without a traceback even by Ctrl-C or a closed pipe."""
    while os.open(os.devnull, os.O_RDWR) < 3:
        pass  # else a pipe of ours could get the number of a closed stdout
    try:
        try:
            code = main()
        except SystemExit as end:  # of argparse: 0 after --help, or 2
            code = end.code
        print(end="", flush=True)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader is gone, as head is after its lines
        code = 141
    except OSError as error:
        code = 1
        with contextlib.suppress(OSError):
            sys.stderr.write(f"cannot print what was found: {error}\n")
    os._exit(code)  # a check that hangs must not hold up the end
