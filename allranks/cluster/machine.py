"""What runs inside the namespaces: the switch, and on each node the process 1.

    the command, on the laptop          holds a pipe to …
      the switch, "login"               in a network of its own, holds a pipe to …
        node 0, node 1, …               each a process 1, with the command below it

One rule ends everything, however it ends: who reads the end of its pipe ends what it
started, and leaves. When process 1 of a namespace leaves, the kernel kills all others
in it, so not even a process that ignores SIGTERM outlives its node.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from allranks.cluster import slurm
from allranks.cluster.plan import LOGIN, NETWORK, Plan

SPACES = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork"]
SPACES += ["--kill-child", "--mount-proc"]
HOSTS = Path("/mnt/hosts")  # an empty file system lies over /mnt in here
TERMINAL = 3  # the input of the reader's command; 0 is the pipe whose end ends all
BURST = "burst 128kb latency 50ms"  # of a slowed link: the bytes that pass at once


def run(line: str) -> None:
    """Run one line of ip, tc or mount; leave with its message if it fails."""
    done = subprocess.run(line.split(), stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode:
        raise SystemExit(f"cluster: `{line}`: {done.stderr.decode().strip()}")


def pipe_ended(wait_s: float) -> bool:
    """Tell whether nobody holds the other end of this process's input any more."""
    return bool(select.select([0], [], [], wait_s)[0]) and not os.read(0, 1)


class Switch:
    """Connects the nodes, and copies what they print, one line in one write."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.lock = plan, threading.Lock()
        self.nodes: list[subprocess.Popen] = []
        self.login: subprocess.Popen | None = None  # what the reader does there
        self.codes: dict[int, int] = {}  # exit codes of the nodes that have ended
        self.reader_left = threading.Event()

    def set_up(self) -> None:
        """Give this namespace a switch, and the file that knows all names."""
        run("ip link set lo up")
        run("ip link add br0 type bridge")
        run(f"ip addr add {NETWORK}.254/24 dev br0")
        run("ip link set br0 up")
        run(f"mount -t tmpfs none {HOSTS.parent}")
        HOSTS.write_text(self.plan.hosts())
        run(f"mount --bind {HOSTS} /etc/hosts")
        socket.sethostname(LOGIN)

    def connect(self, number: int) -> None:
        """Start a node that waits for its go, and plug its link in."""
        me = [sys.executable, "-m", "allranks.cluster.machine"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        plan = self.plan.dump()
        words = [*(SPACES if self.plan.apart else []), *me, str(number), plan]
        node = subprocess.Popen(words, **pipes, stderr=subprocess.STDOUT)
        self.nodes.append(node)
        if node.stdout.readline() != b"up\n":
            raise SystemExit(f"cluster: node{number} did not start")
        if not self.plan.apart:
            return
        ends = f"veth{number} type veth peer name eth0 netns {node.pid}"
        run(f"ip link add {ends}")
        run(f"ip link set veth{number} master br0 up")
        if self.plan.rate:  # what leaves this end is what the node receives
            run(f"tc qdisc add dev veth{number} root tbf rate {self.plan.rate} {BURST}")

    def follow(self, number: int) -> None:
        """Print a node's lines with its name before each, until the node ends."""
        node = self.nodes[number]
        for line in node.stdout:
            self.say(number, line.rstrip(b"\n"))
        code = node.wait()
        self.codes[number] = code if code >= 0 else 128 - code
        if code:
            self.say(number, b"exit code %d" % self.codes[number])

    def say(self, number: int, line: bytes) -> None:
        """Print one line in one write: two nodes' lines never merge."""
        try:
            with self.lock:
                os.write(1, b"node%d| %s\n" % (number, line))
        except OSError:  # nobody reads any longer, as with `| head`
            self.reader_left.set()

    def run(self) -> int:
        """Run the plan; return the exit code of the login node, or the nodes' worst."""
        if self.plan.apart:
            self.set_up()
        if self.plan.slurm:
            slurm.start(self.plan)
        for number in range(self.plan.num_nodes):
            self.connect(number)
        for node in self.nodes:  # when all are connected: none starts alone
            node.stdin.write(b"go\n")
            node.stdin.flush()
        threads = [
            threading.Thread(target=self.follow, args=(number,), daemon=True)
            for number in range(self.plan.num_nodes)
        ]
        for thread in threads:
            thread.start()
        if self.plan.slurm:
            slurm.wait(self.plan.num_nodes)
            self.login = subprocess.Popen(
                self.plan.command, stdin=TERMINAL, env=slurm.environ()
            )
        while any(thread.is_alive() for thread in threads):
            if self.reader_left.is_set() or pipe_ended(0.05):
                break
            if self.login and self.login.poll() is not None:
                break
        for node in self.nodes:
            node.stdin.close()
        for thread in threads:
            thread.join(self.plan.grace_s + 2)
        if self.login:
            return self.login.poll() if self.login.poll() is not None else 137
        return max(self.codes.get(n, 137) for n in range(self.plan.num_nodes))


def set_up(number: int, plan: Plan) -> None:
    """Give a node its name, its address and its shared memory."""
    socket.sethostname(f"node{number}")
    run("ip link set lo up")
    run(f"ip addr add {plan.address(number)}/24 dev eth0")
    run("ip link set eth0 up")
    run(f"ip route add default via {NETWORK}.254")
    run("mount -t tmpfs none /dev/shm")  # shared memory does not cross machines
    if plan.rate:
        run(f"tc qdisc add dev eth0 root tbf rate {plan.rate} {BURST}")


def work(number: int, plan: Plan) -> int:
    """Be the process 1 of a node: run its command, and return the exit code."""
    os.write(1, b"up\n")
    if os.read(0, 3) != b"go\n":
        return 1
    if plan.apart:
        set_up(number, plan)
    how = {"env": {**os.environ, "NODE": str(number)}, "stdin": subprocess.DEVNULL}
    if number in plan.before:
        line = ["bash", "-ec", plan.before[number]]
        if code := subprocess.run(line, **how).returncode:
            return code
    try:
        words = slurm.slurmd(number) if plan.slurm else plan.words(number)
        child = subprocess.Popen(words, **how, start_new_session=True)
    except OSError as error:
        print(f"cluster: {plan.words(number)[0]}: {error.strerror}", flush=True)
        return 127
    deadline = None
    while deadline is None or time.monotonic() < deadline:
        pid, status = os.waitpid(-1, os.WNOHANG)  # process 1 also reaps orphans
        if pid == child.pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if deadline:
            time.sleep(0.02)
        elif pipe_ended(0.02):
            os.killpg(child.pid, signal.SIGTERM)
            deadline = time.monotonic() + plan.grace_s
    os.killpg(child.pid, signal.SIGKILL)
    return 137  # who is in no group of the command's is killed as process 1 leaves


def main() -> int:
    """Be the switch, or the node whose number is the first argument."""
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C: the laptop's process acts
    who, plan = sys.argv[1], Plan.load(sys.argv[2])
    return Switch(plan).run() if who == LOGIN else work(int(who), plan)


if __name__ == "__main__":
    os._exit(main())  # at once: a thread that still reads would keep the namespace
