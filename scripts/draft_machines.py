"""Draft - From one machine to many: what torchrun does, by hand.

Run it on each node; on a single one (no GPU needed):
    python scripts/draft_machines.py --ranks 4 scripts/ch4_ranks.py
"""

import job  # first, since importing torch takes seconds

import argparse
import os
import re
import socket
import subprocess
import sys
import time

from torch.distributed import TCPStore


def meet(store, attempt: int, args) -> dict[str, str]:
    """Wait for all nodes; return the variables that place this one.

    A key that nobody has set makes `get` wait, so no node needs to be first.
    """
    store.set(f"{attempt}/ranks-{args.node}", str(args.ranks))
    if args.node == 0:  # rank 0 will listen here, on a port that is free
        with socket.create_server(("", 0)) as free:
            port = free.getsockname()[1]
        store.set(f"{attempt}/master", f"{socket.gethostname()} {port}")
    host, port = store.get(f"{attempt}/master").decode().split()
    nodes = range(args.nodes)
    each = [int(store.get(f"{attempt}/ranks-{n}")) for n in nodes]
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "WORLD_SIZE": str(sum(each)),
        "RANK": str(sum(each[: args.node])),  # of this node's first process
        "GROUP_RANK": str(args.node),
        "LOCAL_WORLD_SIZE": str(args.ranks),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
    }


def start(command: list[str], place: dict[str, str]) -> list:
    """Start this node's ranks: one process each, told apart by variables."""
    processes = []
    for local_rank in range(int(place["LOCAL_WORLD_SIZE"])):
        rank = {"RANK": str(int(place["RANK"]) + local_rank)}
        env = os.environ | place | rank | {"LOCAL_RANK": str(local_rank)}
        processes.append(subprocess.Popen(command, env=env))
    return processes


def supervise(processes: list, store, attempt: int, nodes: int) -> bool:
    """Return whether all ranks of all nodes end well; if not, end ours."""
    done, failed, counted = f"{attempt}/done", f"{attempt}/failed", False
    while not any(codes := [p.poll() for p in processes]):
        if None not in codes and not counted:
            counted = store.add(done, 1) > 0
        if counted and store.add(done, 0) == nodes:
            return True
        if store.check([failed]):  # on another node
            break
        time.sleep(0.1)
    store.set(failed, "")
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()
    return False


def leave(store, args) -> None:
    """Let node 0 leave last: the store ends with its launcher."""
    left = store.add("left", 1)
    while args.node == 0 and left < args.nodes:
        time.sleep(0.1)
        left = store.add("left", 0)


def parse_args(argv: list[str] | None = None):
    """Read the flags; what follows is the script that each rank runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    number = {"type": int, "metavar": "N"}
    parser.add_argument("--nodes", **number, default=1, help="how many")
    parser.add_argument("--node", **number, default=0, help="which is this")
    parser.add_argument("--ranks", **number, default=1, help="on this node")
    parser.add_argument("--restarts", **number, default=0, help="at most")
    text = "node 0's name, and a port that is free there"
    how = {"default": "localhost:0", "metavar": "HOST:PORT", "help": text}
    parser.add_argument("--head", **how)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    if not re.fullmatch(r"[\w.-]+:\d+", args.head):
        job.refuse(f"--head {args.head}: write it as HOST:PORT")
    if not 0 <= args.node < args.nodes:
        job.refuse(f"--node {args.node}: must be 0 to {args.nodes - 1}")
    if args.ranks < 1 or not args.command:
        job.refuse("nothing to start: give --ranks 1 or more, and a script")
    return args


def main(args) -> None:
    """Meet the other nodes, start the ranks, and start anew if one fails."""
    host, port = args.head.split(":")
    store = TCPStore(host, int(port), is_master=args.node == 0)
    done, attempt = False, 0
    while not done and attempt <= args.restarts:
        place = meet(store, attempt, args)
        processes = start([sys.executable, *args.command], place)
        done = supervise(processes, store, attempt, args.nodes)
        attempt += 1
    leave(store, args)
    raise SystemExit(0 if done else 1)


if __name__ == "__main__":
    main(parse_args())
