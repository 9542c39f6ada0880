"""The arithmetic of ranks obeys its laws on any cluster."""

import doctest
from itertools import takewhile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allranks.topics.topology import sums
from allranks.topics.topology.sums import (
    coordinates_of,
    describe,
    device_of,
    equal_nodes,
    launch_commands,
    rank_of,
    visible_devices,
    world_size_of,
)

clusters = st.lists(st.integers(1, 9), min_size=1, max_size=9)


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(sums).attempted >= 12
    assert doctest.testmod(sums).failed == 0


@given(clusters)
def test_ranks_and_coordinates_are_one_to_one(nodes):
    """Counting node by node gives ranks 0, 1, 2, ..., and coordinates invert this."""
    walk = [(n, i) for n, size in enumerate(nodes) for i in range(size)]
    ranks = [rank_of(nodes, n, i) for n, i in walk]
    assert ranks == list(range(world_size_of(nodes)))
    assert [coordinates_of(nodes, r) for r in ranks] == [
        (r, n, i) for r, (n, i) in zip(ranks, walk, strict=True)
    ]


@given(st.integers(1, 20), st.integers(1, 20), st.data())
def test_equal_nodes_follow_the_textbook_formula(nnodes, nproc_per_node, data):
    nodes = equal_nodes(nnodes, nproc_per_node)
    assert world_size_of(nodes) == nnodes * nproc_per_node
    rank = data.draw(st.integers(0, world_size_of(nodes) - 1))
    expected = (rank, *divmod(rank, nproc_per_node))
    assert coordinates_of(nodes, rank) == expected
    assert rank_of(nodes, *expected[1:]) == rank


@given(clusters, st.integers(-5, 99))
def test_what_lies_outside_the_cluster_is_refused_by_name(nodes, number):
    if not 0 <= number < len(nodes):
        with pytest.raises(ValueError, match=f"^node_rank is {number}, but the .*node"):
            rank_of(nodes, number, 0)
    if not 0 <= number < nodes[0]:
        with pytest.raises(ValueError, match=f"^local_rank is {number}, but the "):
            rank_of(nodes, 0, number)
    if not 0 <= number < sum(nodes):
        with pytest.raises(ValueError, match=f"^rank is {number}, .* 0 "):
            coordinates_of(nodes, number)


def test_the_impossible_exercise_gets_one_sentence():
    """node_rank 5 of three nodes is refused, while torchrun would wait for ever."""
    with pytest.raises(ValueError) as refusal:
        rank_of(equal_nodes(nnodes=3, nproc_per_node=8), node_rank=5, local_rank=0)
    assert f"{refusal.value}" == (
        "node_rank is 5, but the 3 nodes have node_rank 0 to 2"
    )


def test_bounds_are_written_in_plain_english():
    def refusal(*args):
        with pytest.raises(ValueError) as error:
            rank_of(*args)
        return f"{error.value}"

    assert refusal((1,), 1, 0) == "node_rank is 1, but the 1 node has node_rank 0 only"
    assert refusal((1, 2), 1, -1) == (
        "local_rank is -1, but the 2 processes have local_rank 0 to 1"
    )
    assert refusal((2, 0), 0, 0) == "nodes[1] must be at least 1, not 0"


@pytest.mark.parametrize("wrong", [True, 1.0, "1", None, [1]])
def test_only_whole_numbers_count(wrong):
    calls = [
        lambda: equal_nodes(wrong, 8),
        lambda: equal_nodes(3, wrong),
        lambda: rank_of((8,), wrong, 0),
        lambda: rank_of((8,), 0, wrong),
        lambda: coordinates_of((8,), wrong),
        lambda: world_size_of((8, wrong)),
        lambda: describe((8,), wrong),
        lambda: visible_devices("0", wrong),
        lambda: device_of(wrong, [0]),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="must be a whole number, not"):
            call()


def test_text_from_the_environment_gets_a_hint():
    with pytest.raises(TypeError, match=r"not '3': convert it with int\(\) first"):
        coordinates_of((8,), "3")


def test_numbers_of_other_libraries_count():
    assert coordinates_of(np.array([8, 8]), torch.tensor(9)) == (9, 1, 1)
    assert type(coordinates_of((8, 8), np.int64(9)).rank) is int


@pytest.mark.parametrize("wrong", [(), [], 8, "88"])
def test_a_cluster_is_a_list_of_nodes(wrong):
    with pytest.raises(ValueError, match=r"^nodes must list processes by node"):
        world_size_of(wrong)


@given(clusters, st.integers(1, 16))
def test_idle_gpus_are_the_gpus_without_a_process(nodes, gpus):
    if max(nodes) > gpus:
        with pytest.raises(ValueError, match=f"for {max(nodes)} processes"):
            describe(nodes, gpus)
        return
    idle = gpus * len(nodes) - sum(nodes)
    said = f": {idle} of {gpus * len(nodes)} GPUs stay idle" if idle else "no GPU stays"
    assert said in describe(nodes, gpus)


ENTRIES = ["0", "1", "2", "3", "64", "-1", " 1", "+2", "1gpu", "gpu1", ""]


@given(st.lists(st.sampled_from(ENTRIES), max_size=5), st.integers(0, 4))
def test_visible_devices_reads_indices_as_torch_does(entries, num_gpus):
    value = ",".join(entries)
    ours = visible_devices(value, num_gpus)
    assert ours == torch_reads(value, num_gpus, [])
    assert all(0 <= gpu < num_gpus for gpu in ours)


UUIDS = ["GPU-31bb", "GPU-8a40", "GPU-8a41", "GPU-8b00"]


@given(st.lists(st.sampled_from([*UUIDS, "GPU-3", "GPU-8a", "GPU-9", "0", ""])))
def test_visible_devices_reads_uuids_as_torch_does(entries):
    value = ",".join(["GPU-8b", *entries])
    assert visible_devices(value, 4, UUIDS) == torch_reads(value, 4, UUIDS)


def torch_reads(value, num_gpus, uuids):
    """Return what torch's own parser reads, up to the first entry that names no GPU.

    Behind that entry torch still looks for GPUs named twice, but by the CUDA guide the
    list ends there.
    """

    def read(entries):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(entries))
            gpus = torch.cuda._parse_visible_devices()
        if gpus and isinstance(gpus[0], str):
            gpus = torch.cuda._transform_uuid_to_ordinals(gpus, uuids)
        return gpus

    def names_a_gpu(entry):
        if entry.startswith("GPU-") != value.startswith("GPU-"):
            return False  # the first entry decides how all are read
        return len(read([entry])) == 1 and read([entry])[0] < num_gpus

    return read(list(takewhile(names_a_gpu, value.split(","))))


def test_visible_devices_has_four_special_values():
    assert visible_devices(None, 3) == [0, 1, 2]
    assert visible_devices("", 3) == []
    assert visible_devices("0,0", 3) == []
    assert visible_devices("MIG-6c1a/1/0,MIG-9f00/2/0", 3) == ["MIG-6c1a/1/0"]
    with pytest.raises(ValueError, match=r"^'GPU-3' needs 3 UUIDs, not 0$"):
        visible_devices("GPU-3", 3)


def test_a_process_uses_the_gpu_behind_its_local_rank():
    assert [device_of(i, visible_devices("6,3", 8)) for i in (0, 1)] == [6, 3]
    with pytest.raises(ValueError, match="2 visible GPUs have local_rank 0 to 1"):
        device_of(2, [6, 3])
    with pytest.raises(ValueError, match="0 visible GPUs have local_rank none"):
        device_of(0, [])


@given(clusters)
def test_torchrun_understands_every_launch_command(nodes):
    from torch.distributed.run import parse_args, parse_min_max_nnodes

    commands = launch_commands(nodes, "train.py")
    parsed = [parse_args(command.split()[1:]) for command in commands]
    assert [int(args.nproc_per_node) for args in parsed] == nodes
    assert {args.training_script for args in parsed} == {"train.py"}
    assert parse_min_max_nnodes(parsed[0].nnodes) == (len(nodes), len(nodes))
    assert parsed[0].standalone == (len(nodes) == 1)
    assert len({(a.rdzv_endpoint, a.rdzv_id, a.rdzv_backend) for a in parsed}) == 1
