"""The launcher by hand: it places ranks as torchrun does, stops and restarts them."""

import inspect
import os
import re
import subprocess
import sys

import pytest
from torch.distributed.constants import default_pg_timeout
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)

from allranks.base.paths import ROOT
from allranks.cluster.command import obstacle
from book._tools import commands
from scripts import draft_machines as script

SCRIPT = ROOT / "scripts" / "draft_machines.py"
PRINT = """
import os
names = "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"
print(" ".join(os.environ[name] for name in names) + "\\n", end="", flush=True)
"""


def launch(folder, source: str, *each: str) -> list[tuple[int, list[str]]]:
    """Start a launcher per node, the last one first; return how each ended."""
    (folder / "job.py").write_text(source)
    port = script.socket.create_server(("127.0.0.1", 0))
    head = f"127.0.0.1:{port.getsockname()[1]}"
    port.close()
    env = os.environ | {"MASTER_HOST": head}
    nodes = []
    for node in reversed(range(len(each))):
        words = ["--nodes", str(len(each)), "--node", str(node), "--head", head]
        words = [sys.executable, SCRIPT, *words, *each[node].split(), "job.py"]
        how = {"stdout": subprocess.PIPE, "text": True, "cwd": folder, "env": env}
        nodes.insert(0, subprocess.Popen(words, **how))
    outputs = [node.communicate(timeout=60)[0] for node in nodes]
    ends = zip(nodes, outputs, strict=True)
    return [(node.returncode, sorted(said.splitlines())) for node, said in ends]


def test_ranks_are_numbered_by_node(tmp_path):
    """Of nodes with 2, 1 and 2 ranks, the last begins with rank 3 of 5."""
    ends = launch(tmp_path, PRINT, "--ranks 2", "--ranks 1", "--ranks 2")
    assert [code for code, _ in ends] == [0, 0, 0]
    assert ends[0][1] == ["0 0 0 5 2", "1 1 0 5 2"]
    assert ends[1][1] == ["2 0 1 5 1"]
    assert ends[2][1] == ["3 0 2 5 2", "4 1 2 5 2"]


SLEEP = (
    "import os, time, sys\nsys.exit(3) if os.environ['RANK'] == '2' else time.sleep(99)"
)
ONCE = """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] != "2":
    sys.exit(1) if os.environ["RANK"] == "1" else time.sleep(99)
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"rank {os.environ['RANK']} restarts {count}\\n", end="")
"""


def test_one_failure_ends_all_nodes(tmp_path):
    """Ranks that would sleep for 99 s are ended on both nodes."""
    ends = launch(tmp_path, SLEEP, "--ranks 2", "--ranks 2")
    assert [code for code, _ in ends] == [1, 1]


def test_a_restart_begins_all_ranks_anew(tmp_path):
    """Rank 1 fails once; all three start anew, even rank 2, which had ended well."""
    ends = launch(tmp_path, ONCE, "--ranks 2 --restarts 1", "--ranks 1 --restarts 1")
    assert [code for code, _ in ends] == [0, 0]
    assert ends[0][1] == ["rank 0 restarts 1", "rank 1 restarts 1"]
    assert ends[1][1][-1] == "rank 2 restarts 1"


def test_torchrun_numbers_nodes_as_they_arrive():
    """With c10d, each rank says where it is, and all of that fits together."""
    rendezvous = "--rdzv-backend c10d --rdzv-endpoint node0:29500 --rdzv-id job1"
    job = f"torchrun --nnodes 2 --nproc-per-node 2 {rendezvous} {ROOT}/scripts"
    line = f"python -m allranks.cluster 2 -- {job}/ch4_ranks.py"
    code, output = commands.run(line)
    ranks = re.findall(r"\[rank (\d)/4\] node_rank (\d), local_rank (\d)", output)
    assert code == 0 and "processes by node: 2 + 2; world_size 4: verified" in output
    assert sorted(map("".join, ranks)) == ["000", "101", "210", "311"]


TORCHRUN = "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-conf join_timeout=3"
MISTAKES = {  # of the page's table: how many nodes run what
    "the endpoint is localhost": "2 -- {} --rdzv-endpoint localhost:29500 no.py",
    "a node is missing": "1 -- {} --rdzv-endpoint node0:29500 no.py",
}


@pytest.mark.skipif(bool(obstacle()), reason=f"no namespaces here: {obstacle()}")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_nodes_that_do_not_meet_say_so_in_the_end(mistake):
    """After the time that the page names, and which is shorter here."""
    line = MISTAKES[mistake].format(f"{TORCHRUN} --rdzv-id job1")
    code, output = commands.run(f"python -m allranks.cluster {line}")
    assert code == 1 and "RendezvousTimeoutError" in output


def test_how_long_is_waited():
    """Ten minutes for a node, half an hour for a message, five seconds for a sign."""
    assert RendezvousTimeout().join.total_seconds() == 10 * 60
    assert default_pg_timeout.total_seconds() == 30 * 60
    make = inspect.signature(DynamicRendezvousHandler.from_backend).parameters
    assert make["keep_alive_interval"].default == 5


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--head node0 x.py", "--head node0: write it as HOST:PORT"),
        ("--nodes 2 --node 2 x.py", "--node 2: must be 0 to 1"),
        ("--ranks 2", "nothing to start: give --ranks 1 or more, and a script"),
    ],
)
def test_a_wrong_flag_is_one_sentence(flags, said):
    """It names the value and the way out."""
    with pytest.raises(SystemExit, match=said):
        script.parse_args(flags.split())
