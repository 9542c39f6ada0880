"""The command: read its flags, find out what this machine allows, hold the pipe."""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from allranks.cluster import slurm
from allranks.cluster.machine import SPACES, TERMINAL
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
USER_SPACE = ["unshare", "--user", "--keep-caps", sys.executable, "-ISc"]
# Not a shell: as it begins, one gives up its rights if its numbers just got their map.
USER_SPACE += ["import os, sys; os.read(0, 3); os.execvp(sys.argv[1], sys.argv[1:])"]
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
    text = "run Slurm on the nodes, and the command on the login node"
    add("--slurm", action="store_true", help=text)
    add("--loopback", action="store_true", help="do without namespaces")
    # argparse would read the command's own flags: it gets only what is before "--".
    cut = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:cut])
    args.command = argv[cut + 1 :]
    if not 1 <= args.nodes <= MOST:
        parser.error(f"nodes: {args.nodes} is not between 1 and {MOST}")
    if args.rate and not RATE.fullmatch(args.rate):
        parser.error(f"--rate {args.rate}: write it as 100mbit or 1gbit")
    args.on = by_node(parser, "--on", args.on, args.nodes)
    args.before = by_node(parser, "--before", args.before, args.nodes)
    if not args.command and len(args.on) < args.nodes and not args.slurm:
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
    probe = ["ip", "link", "add", "br0", "type", "bridge"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        done = in_namespaces(probe, **pipes)
    except OSError as error:
        return error.strerror
    said = done.communicate()[0].decode().strip()
    return said.splitlines()[-1] if done.returncode else ""


def in_namespaces(words: list[str], **how: object) -> subprocess.Popen:
    """Start a process in namespaces of its own, of which one is a user namespace.

    In there, root's rights end at the namespaces' edge: nobody can set the laptop's
    clock. A user who is not root keeps his number. Root keeps all users and groups,
    since Slurm starts a job as its owner.
    """
    process = subprocess.Popen(
        [*USER_SPACE, *SPACES, *words],
        stdin=subprocess.PIPE,
        env={**os.environ, "PATH": PATH},
        **how,
    )
    proc, ours = Path(f"/proc/{process.pid}"), Path("/proc/self/ns/user").readlink()
    while (proc / "ns/user").readlink() == ours and process.poll() is None:
        time.sleep(0.005)
    if os.getuid():  # the kernel's condition for a user's own group
        (proc / "setgroups").write_text("deny")
    for name, number in ("uid_map", os.getuid()), ("gid_map", os.getgid()):
        line = f"{number} {number} 1" if os.getuid() else f"0 0 {2**32 - 1}"
        (proc / name).write_text(line)
    process.stdin.write(b"go\n")
    process.stdin.flush()
    return process


def hold(plan: Plan, timeout_s: float | None) -> int:
    """Hold the pipe at whose end all nodes end; return the exit code.

    It ends when the nodes do, on a signal, after the timeout, or with whoever started
    this process.
    """
    parent, start, signals = os.getppid(), time.monotonic(), []
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, lambda number, _: signals.append(number))
    me = [sys.executable, "-m", "allranks.cluster.machine", LOGIN, plan.dump()]
    os.dup2(0, TERMINAL)
    # In a session of its own, Ctrl-C reaches this process alone. A shell on the login
    # node needs the terminal's session.
    how = {"pass_fds": [TERMINAL], "start_new_session": not plan.slurm}
    if plan.apart:
        switch = in_namespaces(me, **how)
    else:
        switch = subprocess.Popen(me, stdin=subprocess.PIPE, **how)
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
    return ENDED if late else code if code >= 0 else 128 - code


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
    if args.slurm and (lacks := why or slurm.missing() or "--loopback" * (not apart)):
        raise SystemExit(f"cluster: no Slurm here ({lacks})")
    plan = Plan(
        num_nodes=args.nodes,
        command=args.command or ["bash"],
        instead=args.on,
        before=args.before,
        slurm=args.slurm,
        rate=args.rate,
        apart=apart,
        grace_s=args.grace,
    )
    sys.exit(hold(plan, args.timeout))
