"""The command: read its flags, find out what this machine allows, hold the pipe."""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import NoReturn

from allranks.cluster.machine import SPACES
from allranks.cluster.plan import LOGIN, Plan

DESCRIPTION = """\
Run a command on each node of a small cluster inside of this computer.

Nodes are called node0, node1, …; this computer is their login node. Each has an
address, a host name and a link of its own. In the command, {node} is the number.
"""
EXAMPLES = """\
  python -m allranks.cluster 2 -- torchrun --nnodes 2 --nproc-per-node 2 \\
      --rdzv-backend c10d --rdzv-endpoint node0:29500 --rdzv-id job train.py
  python -m allranks.cluster 2 --rate 1gbit -- …     each link carries 1 Gbit/s
  python -m allranks.cluster 2 --on 1 "sleep 20; torchrun …" -- torchrun …
"""
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"  # where ip and tc may be
APART = [*SPACES, "--map-root-user"]  # or root on a "node" would be root of the laptop
MOST = 250  # nodes: addresses 1 to 250, and the login node's 254
RATE = re.compile(r"\d+(\.\d+)?[kmg]?bit")
ENDED = 124  # exit code after --timeout, as timeout(1) has it


def parse_args(argv: list[str]) -> argparse.Namespace:
    """Read the flags; what follows "--" is the command."""
    how = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(
        "python -m allranks.cluster", description=DESCRIPTION, epilog=EXAMPLES, **how
    )
    add = parser.add_argument
    add("nodes", type=int, help="how many")
    add("--rate", default="", help="of each link, in each direction: 100mbit, 1gbit")
    lines = {"nargs": 2, "action": "append", "default": [], "metavar": ("NODE", "LINE")}
    add("--on", **lines, help="a shell line that a node runs instead of the command")
    add("--before", **lines, help="a shell line that a node runs first")
    how = {"type": float, "metavar": "S"}
    add("--timeout", **how, help="end all nodes after S seconds")
    add("--grace", **how, default=10.0, help="from SIGTERM to SIGKILL")
    add("--loopback", action="store_true", help="do without namespaces")
    cut = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:cut])
    args.command = argv[cut + 1 :]
    if not 1 <= args.nodes <= MOST:
        parser.error(f"nodes: {args.nodes} is not between 1 and {MOST}")
    if args.rate and not RATE.fullmatch(args.rate):
        parser.error(f"--rate {args.rate}: write it as 100mbit or 1gbit")
    args.on = by_node(parser, "--on", args.on, args.nodes)
    args.before = by_node(parser, "--before", args.before, args.nodes)
    if not args.command and len(args.on) < args.nodes:
        parser.error("no command: put it after --, as in `2 -- hostname`")
    return args


def by_node(
    parser: argparse.ArgumentParser, flag: str, pairs: list, num_nodes: int
) -> dict[int, str]:
    """Return lines by node; refuse a node that there is not."""
    lines = {}
    for node, line in pairs:
        if not node.isdecimal() or int(node) >= num_nodes:
            parser.error(f"{flag} {node}: nodes are 0 to {num_nodes - 1}")
        lines[int(node)] = line
    return lines


def obstacle() -> str:
    """Return why there are no namespaces on this machine; "" if there are."""
    if sys.platform != "linux":
        return "network namespaces are a part of Linux"
    if missing := [
        x for x in ("ip", "tc", "unshare") if not shutil.which(x, path=PATH)
    ]:
        return f"{', '.join(missing)} not found: install iproute2 and util-linux"
    probe = [*APART, "ip", "link", "add", "br0", "type", "bridge"]
    done = subprocess.run(probe, env={"PATH": PATH}, capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def hold(plan: Plan, timeout_s: float | None) -> int:
    """Hold the pipe at whose end all nodes end; return the exit code.

    It ends when the nodes do, on a signal, after the timeout, or with whoever started
    this process.
    """
    parent, start, signals = os.getppid(), time.monotonic(), []
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, lambda number, _: signals.append(number))
    me = [sys.executable, "-m", "allranks.cluster.machine", LOGIN, plan.dump()]
    switch = subprocess.Popen(
        [*(APART if plan.apart else []), *me],
        stdin=subprocess.PIPE,
        env={**os.environ, "PATH": PATH},
        start_new_session=True,  # Ctrl-C reaches this process alone
    )
    late = False
    while switch.poll() is None and not signals and not late:
        late = timeout_s is not None and time.monotonic() - start > timeout_s
        if os.getppid() != parent:
            break
        time.sleep(0.05)
    switch.stdin.close()
    try:
        code = switch.wait(plan.grace_s + 5)
    except subprocess.TimeoutExpired:
        switch.kill()  # its namespace goes with it
        code = switch.wait()
    if signals:
        return 128 + signals[0]
    return ENDED if late else code


def script() -> NoReturn:
    """Run the command line, and exit."""
    args = parse_args(sys.argv[1:])
    why = "" if args.loopback else obstacle()
    apart = not (why or args.loopback)
    if args.rate and not apart:
        raise SystemExit(f"cluster: no link can be slowed here ({why or '--loopback'})")
    if why:
        text = f"cluster: no namespaces here ({why}): all nodes are on 127.0.0.1\n"
        sys.stderr.write(text)
    plan = Plan(
        args.nodes, args.command, args.on, args.before, args.rate, apart, args.grace
    )
    sys.exit(hold(plan, args.timeout))
