"""A cluster in the laptop: nodes are apart, links are slow, and nothing is left."""

import functools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from allranks.cluster.command import in_namespaces, obstacle

CLUSTER = [sys.executable, "-m", "allranks.cluster"]
WHY = obstacle()
apart = pytest.mark.skipif(bool(WHY), reason=f"no namespaces here: {WHY}")
MODES = pytest.param([], marks=apart, id="apart"), pytest.param(["--loopback"])


def cluster(*words: str) -> tuple[int, dict[str, list[str]]]:
    """Run a command line; return its exit code, and the lines of each node."""
    done = subprocess.run([*CLUSTER, *words], capture_output=True, text=True)
    lines: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        node, said = re.fullmatch(r"(node\d+)\| (.*)", line).groups()
        lines.setdefault(node, []).append(said)
    return done.returncode, lines


def processes(mark: str, program: str = "") -> list[int]:
    """Return the processes, of any namespace, in whose command line a mark stands."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        ours = int(path.parent.name) == os.getpid()
        if mark in words and words.startswith(program) and not ours:
            found.append(int(path.parent.name))
    return found


def wait_until(condition, what: str, wait_s: float = 30) -> None:
    """Wait for a condition."""
    end = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


class TestApart:
    """What a node has for itself."""

    pytestmark = apart

    def test_names_and_addresses(self):
        """Each node has its name and address, and knows those of all others."""
        line = "hostname; hostname -I; getent ahostsv4 node0; getent ahostsv4 node1"
        code, lines = cluster("2", "--", "bash", "-c", line)
        assert code == 0
        names = ["10.18.0.1       STREAM node0", "10.18.0.2       STREAM node1"]
        for number in 0, 1:
            said = [line.strip() for line in lines[f"node{number}"]]
            assert said[0] == f"node{number}"
            assert said[1].split()[0] == f"10.18.0.{number + 1}"
            assert [x for x in said if x in names] == names

    def test_ports_processes_and_shared_memory(self):
        """Two nodes listen on one port; neither sees the other's files in /dev/shm."""
        code, lines = cluster(
            *("2", "--", sys.executable, "-c"),
            "import os, socket, time\n"
            "listener = socket.create_server(('', 29500))\n"
            "open(f'/dev/shm/{os.environ[\"NODE\"]}', 'w').close()\n"
            "time.sleep(1)\n"
            "print(os.listdir('/dev/shm'), os.getpid() < 20)",
        )
        assert code == 0
        assert lines == {"node0": ["['0'] True"], "node1": ["['1'] True"]}

    def test_root_on_a_node_is_not_root_of_the_laptop(self):
        """Nodes are in a user namespace, in which nobody may set the clock."""
        inside = cluster("1", "--", "readlink", "/proc/self/ns/user")[1]["node0"]
        assert inside != [os.readlink("/proc/self/ns/user")]

    def test_the_laptops_network_and_files_stay(self):
        """No link, mount or host name of a cluster is seen outside of it."""
        before = Path("/proc/self/mounts").read_text(), os.listdir("/sys/class/net")
        line = "sleep 1; hostname"
        job = [*CLUSTER, "2", "--", "bash", "-c", line]
        with subprocess.Popen(job, stdout=subprocess.PIPE) as run:
            time.sleep(0.8)
            now = Path("/proc/self/mounts").read_text(), os.listdir("/sys/class/net")
            assert b"node0| node0" in run.stdout.read()
        assert now == before and os.uname().nodename != "node0"

    def test_a_slow_link_is_slow(self):
        """10 MB take 0.8 s at 100 Mbit/s, and much less on another link."""
        code = (
            "import os, socket, time\n"
            "size = 10_000_000\n"
            "if os.environ['NODE'] == '0':\n"
            "    with socket.create_server(('', 5000)) as server:\n"
            "        peer, _ = server.accept()\n"
            "        start, got = time.monotonic(), 0\n"
            "        while got < size: got += len(peer.recv(1 << 20))\n"
            "        print(time.monotonic() - start)\n"
            "else:\n"
            "    while True:\n"
            "        try: peer = socket.create_connection(('node0', 5000)); break\n"
            "        except OSError: time.sleep(0.1)\n"
            "    peer.sendall(bytes(size))\n"
        )
        job = "--", sys.executable, "-c", code
        slow = float(cluster("2", "--rate", "100mbit", *job)[1]["node0"][0])
        fast = (float(cluster("2", *job)[1]["node0"][0]) for _ in range(5))
        assert slow > 0.75 and any(time < slow / 2 for time in fast)

    def test_a_line_before_fills_one_nodes_disk(self, tmp_path):
        """--before runs on its node alone, with root's rights over its mounts."""
        mount = f"mount -t tmpfs -o size=100k none {tmp_path}"
        write = f"head -c 1000000 /dev/zero > {tmp_path}/file-$NODE"
        code, lines = cluster("2", "--before", "1", mount, "--", "bash", "-c", write)
        assert code == 1 and "node0" not in lines
        assert "No space left" in lines["node1"][0]
        assert [path.name for path in tmp_path.iterdir()] == ["file-0"]


@pytest.mark.parametrize("mode", MODES)
class TestEnds:
    """However a cluster ends, nothing of it is left."""

    def test_the_worst_exit_code(self, mode):
        """Nodes end as they do, and the command with the worst code of them."""
        code, lines = cluster("3", *mode, "--on", "1", "exit 3", "--", "true")
        assert (code, lines) == (3, {"node1": ["exit code 3"]})
        code, lines = cluster("1", *mode, "--", "no-such-command")
        assert code == 127 and "No such file" in lines["node0"][0]

    def test_the_node_in_words(self, mode):
        """{node} and $NODE are the number of the node."""
        _, lines = cluster("2", *mode, "--", "bash", "-c", "echo {node} $NODE")
        assert lines == {"node0": ["0 0"], "node1": ["1 1"]}

    def test_a_time_limit(self, mode):
        """After --timeout all nodes get SIGTERM, and the exit code is 124."""
        start = time.monotonic()
        code, lines = cluster("2", *mode, "--timeout", "1", "--", "sleep", "97531")
        assert (code, lines["node1"]) == (124, ["exit code 143"])
        assert time.monotonic() - start < 15 and not processes("97531")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_a_signal(self, mode, number):
        """Ctrl-C, SIGTERM and even SIGKILL of the command end all nodes."""
        mark = f"86420{int(number)}"
        job = [*CLUSTER, "2", *mode, "--", "sleep", mark]
        with subprocess.Popen(job, stdout=subprocess.DEVNULL) as run:
            sleeps = functools.partial(processes, mark, "sleep")
            wait_until(lambda: len(sleeps()) == 2, "the nodes did not start")
            run.send_signal(number)
            code = run.wait()
        assert code == (128 + number if number != signal.SIGKILL else -number)
        wait_until(lambda: not processes(mark), f"left: {processes(mark)}")

    def test_a_reader_that_leaves(self, mode):
        """As soon as nobody reads, it ends: `| head -1`."""
        words = " ".join([*CLUSTER, "2", *mode, "--", "yes", "75319"])
        done = subprocess.run(["bash", "-c", f"{words} | head -1"], capture_output=True)
        assert done.stdout.count(b"\n") == 1
        wait_until(lambda: not processes("75319"), "yes lives on")


@apart
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_namespaces_are_made_each_time():
    """Of 500 starts none is refused: a shell between them once gave up its rights."""
    ends = [in_namespaces(["true"]).wait() for _ in range(500)]
    assert set(ends) == {0}


@apart
def test_nobody_outlives_its_node():
    """Who ignores SIGTERM in a session of its own ends with its node all the same."""
    deaf = (
        "trap '' TERM; setsid bash -c \"trap '' TERM; sleep 64202; :\" & sleep 64202; :"
    )
    job = [*CLUSTER, "1", "--grace", "1", "--timeout", "2", "--", "bash", "-c", deaf]
    assert subprocess.run(job, stdout=subprocess.DEVNULL).returncode == 124
    wait_until(lambda: not processes("64202"), "a process outlived its node")


@apart
def test_a_process_that_hangs_is_ended_from_outside():
    """The switch cannot end its nodes, since it is stopped; they end all the same."""
    job = [*CLUSTER, "1", "--grace", "0.2", "--", "sleep", "97613"]
    with subprocess.Popen(job, stdout=subprocess.DEVNULL) as run:
        wait_until(lambda: processes("97613", "sleep"), "the node did not start")
        switch, _ = sorted(set(processes("97613", sys.executable)) - {run.pid})
        os.kill(switch, signal.SIGSTOP)
        run.terminate()
        assert run.wait() == 128 + signal.SIGTERM
    wait_until(lambda: not processes("97613"), f"left: {processes('97613')}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["0", "--", "true"], "nodes: 0 is not between 1 and 250"),
        (["2", "--on", "2", "true", "--", "true"], "--on 2: nodes are 0 to 1"),
        (["2", "--before", "x", "true", "--", "true"], "--before x: nodes are 0 to 1"),
        (["2", "--rate", "fast", "--", "true"], "--rate fast: write it as 100mbit"),
        (["2"], "no command: put it after --, as in `2 -- hostname`"),
        (["1", "--loopback", "--rate", "1gbit", "--", "true"], "no link can be slowed"),
    ],
)
def test_a_wrong_use_is_one_sentence(words, said):
    """It names the value and the way out, and starts nothing."""
    done = subprocess.run([*CLUSTER, *words], capture_output=True, text=True)
    assert done.returncode != 0 and said in done.stderr and not done.stdout


def test_where_there_are_no_namespaces_it_says_so(tmp_path):
    """Without the tools, all nodes are on loopback, and names still lead somewhere."""
    line = "echo node0:29500 login $NODE"
    env = {**os.environ, "PATH": os.path.dirname(sys.executable)}
    env |= {"PYTHONPATH": os.getcwd()}
    find = "import allranks.cluster.command as c; c.PATH = '/nowhere'; c.script()"
    words = [sys.executable, "-c", find, "1", "--", "/bin/sh", "-c", line]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert "no namespaces here (ip, tc, unshare not found: install" in done.stderr
    assert done.stdout == "node0| 127.0.0.1:29500 127.0.0.1 0\n"
