"""Draft - From one machine to many: what torchrun does, in 40 lines.

Run it on each of two nodes (they may be namespaces of your laptop):
    python -m allranks.cluster 2 -- python scripts/draft_machines.py \
        --nodes 2 --ranks 2 --head node0:29500 draft_hello.py
"""

import argparse
import os
import socket
import subprocess
import sys
import time

from torch.distributed import TCPStore


def meet(store, attempt: int, nodes: int, ranks: int) -> dict[str, str]:
    """Wait for all nodes; return the variables that describe this one."""
    node = store.add(f"{attempt}/nodes", 1) - 1  # in the order of arrival
    store.set(f"{attempt}/ranks-{node}", str(ranks))
    if node == 0:  # here rank 0 will listen
        with socket.create_server(("", 0)) as free:
            port = free.getsockname()[1]
        store.set(f"{attempt}/master", f"{socket.gethostname()} {port}")
    host, port = store.get(f"{attempt}/master").decode().split()  # waits
    each = [int(store.get(f"{attempt}/ranks-{n}")) for n in range(nodes)]
    return {
        **{"MASTER_ADDR": host, "MASTER_PORT": port},
        **{"GROUP_RANK": str(node), "LOCAL_WORLD_SIZE": str(ranks)},
        **{"RANK": str(sum(each[:node])), "WORLD_SIZE": str(sum(each))},
    }


def start(command: list[str], place: dict[str, str], ranks: int) -> list:
    """Start this node's ranks; RANK in `place` is the first one's."""
    processes = []
    for local_rank in range(ranks):
        rank = {"RANK": str(int(place["RANK"]) + local_rank)}
        rank |= {"LOCAL_RANK": str(local_rank)}
        env = {**os.environ, **place, **rank}
        processes.append(subprocess.Popen(command, env=env))
    return processes


def wait(processes: list, store, attempt: int) -> bool:
    """Wait until all ranks of this node are done, or a rank of any fails."""
    while any(codes := [p.poll() for p in processes]) is False:
        if None not in codes:
            return True
        if store.check([f"{attempt}/failed"]):  # on another node
            break
        time.sleep(0.1)
    store.set(f"{attempt}/failed", "")  # all nodes see it, and stop as well
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()
    return False


def leave(store, nodes: int) -> None:
    """Wait for all nodes: the store ends with the process that holds it."""
    store.add("done", 1)
    while store.add("done", 0) < nodes:
        time.sleep(0.1)


def parse_args(argv: list[str] | None = None):
    """Read the flags; what follows is the script that each rank runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1, help="on this node")
    parser.add_argument("--head", required=True, metavar="HOST:PORT")
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(argv)


def main() -> None:
    """Meet, start the ranks, and start them again if one fails."""
    args = parse_args()
    host, port = args.head.split(":")
    here = socket.gethostbyname(host) == socket.gethostbyname(
        socket.gethostname()
    )
    store = TCPStore(host, int(port), is_master=here)
    command, done = [sys.executable, *args.command], False
    for attempt in range(args.restarts + 1):
        place = meet(store, attempt, args.nodes, args.ranks)
        if done := wait(start(command, place, args.ranks), store, attempt):
            break
    leave(store, args.nodes)
    raise SystemExit(0 if done else 1)


if __name__ == "__main__":
    main()
