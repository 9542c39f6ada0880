"""Chapter 4's ranks say who they are, on any cluster, and a wrong one is found."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import distributed_c10d

from allranks import launch
from allranks.openings import opening
from allranks.topics.topology.sums import (
    coordinates_of,
    rank_of,
    visible_devices,
    world_size_of,
)
from scripts import ch4_ranks

PAGE = Path(__file__).resolve().parents[1] / "book" / "ch4_ranks.md"
HELLO = PAGE.parent / "_examples" / "hello.py"
SAID = re.compile(
    r"node_rank (\d+), local_rank (\d+), device cpu: rank = (\d+) \+ (\d+)"
)


def test_the_first_script_says_rank_and_world_size():
    """Each of four ranks prints one line, as the page says."""
    lines = launch(HELLO, 4).lines
    assert lines == {rank: [f"rank {rank} of 4"] for rank in range(4)}


def test_every_rank_says_what_the_arithmetic_says():
    """Each rank says its place on unequal nodes; the pages show it on equal ones."""
    nodes = (2, 1)
    run = launch("ch4_ranks", nodes, "--env", "1")
    world_size = world_size_of(nodes)
    assert sorted(run.lines) == list(range(world_size))
    for rank, lines in run.lines.items():
        assert all(line.startswith(f"[rank {rank}/{world_size}] ") for line in lines)
        node_rank, local_rank, before, plus = map(int, SAID.search(lines[0]).groups())
        assert (rank, node_rank, local_rank) == coordinates_of(nodes, rank)
        assert (before, plus) == (sum(nodes[:node_rank]), local_rank)
    by_node = " + ".join(map(str, nodes))
    proof = f"processes by node: {by_node}; world_size {world_size}: verified"
    assert run.lines[0][1:] == [f"[rank 0/{world_size}] {proof}"]
    shown = [line.partition("] ")[2].split("=", 1) for line in run.lines[1][1:]]
    assert [name for name, _ in shown] == list(ch4_ranks.VARIABLES)
    values = dict(shown)
    place = values["RANK"], values["LOCAL_RANK"], values["GROUP_RANK"]
    assert place == ("1", "1", "0")
    assert values["WORLD_SIZE"] == values["ROLE_WORLD_SIZE"] == f"{world_size}"
    assert values["LOCAL_WORLD_SIZE"] == f"{nodes[0]}"
    assert values["GROUP_WORLD_SIZE"] == f"{len(nodes)}"


def test_the_list_of_variables_is_torchruns(tmp_path, monkeypatch):
    """The list is what a rank's environment has and its agent's has not."""
    script = tmp_path / "dump.py"
    script.write_text(
        "import json, os, psutil\n"
        "agent = psutil.Process(os.getppid()).environ()\n"
        "print(json.dumps([n for n in os.environ if n not in agent]))\n"
    )
    (line,) = launch(script, 1).lines[0]
    added = {name for name in json.loads(line) if not name.startswith(("LC_", "__"))}

    from torch.distributed.run import config_from_args, parse_args

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config_from_args(parse_args(["--standalone", "--nproc-per-node", "2", "x.py"]))
    added |= {name for name in ["OMP_NUM_THREADS"] if name in os.environ}
    assert added == set(ch4_ranks.VARIABLES)


def table_rows(heading):
    """Return the rows of the page's first table below a heading, cells split."""
    below = PAGE.read_text("utf8").partition(heading)[2].partition("\n|")[2]
    rows = [row for row in below.partition("\n\n")[0].splitlines()[2:] if "|" in row]
    return [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in rows]


def test_the_page_explains_every_variable():
    rows = table_rows("### What torchrun tells each process")
    assert sorted(name for name, _ in rows) == sorted(ch4_ranks.VARIABLES)
    assert all(meaning for _, meaning in rows)


def test_the_page_reads_cuda_visible_devices_as_we_do():
    rows = table_rows("### Which GPU is `cuda:0`?")
    compared = 0
    for value, result in rows:
        value = {"not set": None, "empty": ""}.get(value, value)
        if value is None or not value.endswith("…"):
            stated = [int(n) for n in re.findall(r"\d", result.partition(":")[0])]
            assert visible_devices(value, num_gpus=4) == stated, value
            compared += 1
    assert compared == 5


clusters = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def places_of(nodes):
    """Return what honest ranks of a cluster say: node, local rank, processes."""
    honest = [coordinates_of(nodes, rank) for rank in range(world_size_of(nodes))]
    return torch.tensor(
        [(c.node_rank, c.local_rank, nodes[c.node_rank]) for c in honest]
    )


@given(clusters)
def test_honest_ranks_pass(nodes):
    places = places_of(nodes)
    ch4_ranks.verify(places)
    assert ch4_ranks.count_processes(places) == nodes


@given(clusters, st.data())
def test_any_single_lie_is_found(nodes, data):
    """Whichever number one rank gets wrong, the proof fails and names a rank."""
    places = places_of(nodes)
    liar = data.draw(st.integers(0, len(places) - 1))
    what = data.draw(st.integers(0, 2))
    lies = st.integers(0, 5).filter(lambda value: value != places[liar, what])
    places[liar, what] = data.draw(lies)
    with pytest.raises(RuntimeError, match=r"^(rank|node) \d+ (says|has no process)"):
        ch4_ranks.verify(places)


def test_ranks_in_another_order_are_found():
    places = places_of((2, 2))
    with pytest.raises(
        RuntimeError, match=r"^rank 1 says node_rank 1, local_rank 0 of 2"
    ):
        ch4_ranks.verify(places[[0, 2, 1, 3]])


def test_plain_python_is_told_how_to_launch(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setitem(sys.modules, "__main__", ch4_ranks)
    with pytest.raises(SystemExit, match="torchrun --standalone --nproc-per-node 4"):
        ch4_ranks.main([])


@pytest.fixture
def alone(monkeypatch):
    """Be the only process of a job, as torchrun would describe it."""
    for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")  # port 0: any free one
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_TIMEOUT_S"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_one_process_is_a_cluster_too(alone, capsys):
    ch4_ranks.main([])
    assert capsys.readouterr().out.splitlines() == [
        "[rank 0/1] node_rank 0, local_rank 0, device cpu: rank = 0 + 0",
        "[rank 0/1] processes by node: 1; world_size 1: verified",
    ]


def test_a_rank_that_does_not_exist_has_no_variables(alone):
    with pytest.raises(SystemExit, match=r"^--env 7: must be 0 to 0$"):
        ch4_ranks.main(["--env", "7"])


@pytest.mark.parametrize(
    ("accelerator", "found"), [("cpu", {"cpu": "gloo"}), ("cuda", {"cuda": "nccl"})]
)
def test_without_a_name_there_is_one_backend_not_one_per_device(
    accelerator, found, monkeypatch
):
    """The pages of this chapter and of the next say so; the device is pretended."""
    device = torch.device(accelerator)
    monkeypatch.setattr(torch._C, "_get_accelerator", lambda: device)
    current = None if accelerator == "cpu" else device  # torch 2.15 asks this:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: current)
    config = distributed_c10d.BackendConfig("undefined")
    assert config.get_device_backend_map() == found
    for page in "ch4_ranks", "ch5_ddp":
        text = " ".join(PAGE.with_stem(page).read_text("utf8").split())
        assert "machine's accelerator, or" in text


def test_the_opening_counts_ranks_by_the_rule():
    """It shows two nodes with two processes each."""
    texts = re.findall(r"<text[^>]*>([^<]*)", opening("ch4_ranks"))
    shown = [text for text in texts if text.startswith("rank ")]
    assert shown == [f"rank {rank_of((2, 2), n, i)}" for n in (0, 1) for i in (0, 1)]
