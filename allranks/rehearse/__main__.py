"""The command: ``python -m allranks.rehearse --gpus 4 torchrun ... train.py``."""

import argparse
import atexit
import gc
import math
import os
import sys
import tempfile
from pathlib import Path

from allranks.rehearse import failures, launch, nvidia_smi, report
from allranks.rehearse.findings import KINDS, Finding, judge
from allranks.rehearse.launch import CommandError
from allranks.rehearse.records import Record, Stage, gather, to_json
from allranks.vgpu.cuda import cards
from allranks.vgpu.sizes import to_bytes

MOST_RANKS = 2**20
STEPS = 3  # of a dry run: the second is as all that follow
MEMORY = "80 GiB"  # of a GPU of unknown size: enough for most scripts


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return what the command line says.

    Args:
        arguments: of the command line; None takes the process's.
    """
    parser = argparse.ArgumentParser(
        prog="python -m allranks.rehearse",
        description="Run a CUDA and NCCL script, unchanged, on virtual GPUs.",
        usage="%(prog)s [options] train.py ... | torchrun ... train.py ...",
    )
    add = parser.add_argument
    add("--gpus", type=int, default=2, help="GPUs of each node (2)")
    add("--nodes", type=int, default=1, help="nodes, each with its own torchrun (1)")
    add("--memory", default="", help=f"of each GPU, as 24GiB ({MEMORY}, or the card's)")
    add("--gpu", default="", help=f"a card: {', '.join(cards.CARDS)}")
    add("--dry", action="store_true", help="compute nothing: one rank of --world-size")
    add("--world-size", type=int, help="with --dry: ranks of the job, such as 1024")
    add("--steps", type=int, help=f"with --dry: end after so many ({STEPS}); 0: never")
    add("--timeout", type=float, help="seconds until the run ends with code 124")
    add("--watch", type=float, default=60, help="seconds until a collective hangs (60)")
    add("--stub", action="append", default=[], help="NAME=FILE: import FILE as NAME")
    add("--no-guard", action="store_true", help="leave out allranks.guard")
    add("--full", action="store_true", help="print all tables, rows and tracebacks")
    add("--quiet", action="store_true", help="print no report")
    add("--json", help="write the report to this file, for programs")
    add("--html", help="write the report to this file, as a page")
    add("--annotate", action="store_true", help="mark lines of a GitHub pull request")
    add("--strict", action="store_true", help="exit with 3 if anything is wrong")
    add("--allow", action="append", default=[], help="leave out a kind of finding")
    # From the first word on, options are the command's own.
    add("command", nargs=argparse.REMAINDER, help="the command, as on the cluster")
    args = parser.parse_args(arguments)
    if args.command[:1] == ["--"]:
        del args.command[0]
    try:
        _check(args)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    return args


def _check(args: argparse.Namespace) -> None:
    """Raise ValueError, or TypeError, for what cannot be meant, in one sentence."""
    if not args.command:
        raise ValueError("name the command to rehearse, such as train.py --epochs 1")
    if not 1 <= args.gpus <= 64:
        raise ValueError(f"--gpus {args.gpus}: choose 1 to 64")
    if args.dry:
        _check_dry(args)
    elif args.world_size is not None or args.steps is not None:
        raise ValueError("--world-size and --steps need --dry")
    if not 1 <= args.nodes <= 16:
        raise ValueError(f"--nodes {args.nodes}: choose 1 to 16")
    for name, value in ("--timeout", args.timeout), ("--watch", args.watch):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} {value:g}: give seconds above 0")
    # A report that cannot be written would be noticed after the run.
    for name, file in ("--json", args.json), ("--html", args.html):
        if file and (Path(file).is_dir() or not Path(file).absolute().parent.is_dir()):
            raise ValueError(f"{name} {file}: name a file in a folder that is there")
    for stub in args.stub:
        if not Path(stub.partition("=")[2]).is_file():
            raise ValueError(
                f"--stub {stub}: give NAME=FILE, of a Python file that is there"
            )
    for kind in args.allow:
        if kind not in KINDS:
            raise ValueError(f"--allow {kind}: the kinds are {', '.join(KINDS)}")
    if args.memory:
        to_bytes(args.memory)
    if args.gpu:
        cards.find(args.gpu)


def _check_dry(args: argparse.Namespace) -> None:
    """Raise ValueError for what cannot be meant with --dry."""
    if args.world_size is None:
        raise ValueError("--dry needs --world-size, such as --world-size 1024")
    if not 1 <= args.world_size <= MOST_RANKS:
        raise ValueError(f"--world-size {args.world_size}: choose 1 to {MOST_RANKS:,}")
    if args.nodes != 1:
        raise ValueError("--nodes with --dry: say --world-size alone")
    if args.steps is None:
        args.steps = STEPS
    if args.steps < 0:
        raise ValueError(f"--steps {args.steps}: choose 1 or more, or 0 for all")


def _stub(option: str) -> tuple[str, str]:
    """Return a module's name, and where its stand-in is, wherever the script goes."""
    name, _, path = option.partition("=")
    return name, os.path.abspath(path)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code, or 3 for what --strict does not allow."""
    args = options(arguments)
    if args.dry:
        try:
            ranks = launch.alone(args.command, args.world_size, args.gpus)
        except CommandError as error:
            print(f"rehearsal: {error}", file=sys.stderr)
            return 2
        args.command, args.gpus = ranks
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        stage = Stage(
            folder=folder,
            gpus=args.gpus,
            nodes=args.nodes,
            memory=args.memory or ("" if args.gpu else MEMORY),
            card=args.gpu,
            watch_s=args.watch,
            guard=not (args.no_guard or args.dry),
            stubs=dict(map(_stub, args.stub)),
            full=args.full,
            world_size=args.world_size or 0,
            num_steps=args.steps or 0,
        )
        try:
            nvidia_smi.install(Path(folder))
            killed = failures.num_killed()
            code, ended = launch.run(stage, args.command, args.timeout, folder)
            killed = failures.num_killed() - killed
        except CommandError as error:
            print(f"rehearsal: {error}", file=sys.stderr)
            return 2
        records = gather(folder)
    if code and killed:
        ended += failures.killed_by_linux(killed, records)
    judged = judge(records, 1 if args.dry else args.gpus * args.nodes)
    findings = [finding for finding in judged if finding.kind not in args.allow]
    _report(args, code, ended, records, findings)
    # A parent may end with 0 and not look at its children.
    wrong = findings or failures.failures(records)
    return 3 if code == 0 and wrong and args.strict else code


def _report(
    args: argparse.Namespace,
    code: int,
    ended: str,
    records: list[Record],
    findings: list[Finding],
) -> None:
    """Print and write the report in each form that was asked for."""
    if not args.quiet:
        full = args.full or None
        print(report.text(records, findings, ended, full), end="", flush=True)
    if args.annotate:
        for line in report.annotations(records, findings, args.strict):
            print(line, flush=True)
    if args.json:
        run = {"ended": ended, "exit": code, "processes": records, "findings": findings}
        Path(args.json).write_text(to_json(run, indent=1), "utf8")
    if args.html:
        Path(args.html).write_text(report.html(records, findings, ended), "utf8")


if __name__ == "__main__":
    atexit.register(gc.freeze)  # or Python looks for garbage for half a second
    sys.exit(main())
