"""Who is who: the arithmetic of nodes, ranks and devices.

A cluster is written as the number of processes on each node, by node rank:
``(8, 8, 8)`` is three nodes of eight, ``(2, 1)`` is two unequal ones. All functions are
pure. An impossible number raises ValueError, and a value that is no whole number raises
TypeError, both with one sentence that names the value and its bound.
"""

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from allranks.base.units import whole


class Coordinates(NamedTuple):
    """One process: its number in the job, that of its node, and its number there."""

    rank: int
    node_rank: int
    local_rank: int


def equal_nodes(nnodes: int, nproc_per_node: int) -> tuple[int, ...]:
    """Return a cluster of equal nodes.

    >>> equal_nodes(nnodes=3, nproc_per_node=8)
    (8, 8, 8)
    """
    nnodes = whole("nnodes", nnodes, low=1)
    return (whole("nproc_per_node", nproc_per_node, low=1),) * nnodes


def world_size_of(nodes: Sequence[int]) -> int:
    """Count all processes, which is nnodes * nproc_per_node if the nodes are equal.

    >>> world_size_of((8, 8, 8)), world_size_of((2, 1))
    (24, 3)
    """
    return sum(_cluster(nodes))


def rank_of(nodes: Sequence[int], node_rank: int, local_rank: int) -> int:
    """Turn coordinates into the rank: local_rank, plus the processes on earlier nodes.

    With equal nodes that is ``node_rank * nproc_per_node + local_rank``.

    Source: torch.distributed.elastic.agent.server.api, ``_assign_worker_ranks``.

    >>> rank_of((8, 8, 8), node_rank=2, local_rank=5)
    21
    >>> rank_of((8, 8, 8), node_rank=5, local_rank=0)
    Traceback (most recent call last):
    ValueError: node_rank is 5, but the 3 nodes have node_rank 0 to 2
    """
    nodes = _cluster(nodes)
    node_rank = _index("node_rank", node_rank, len(nodes), "node")
    local_rank = _index("local_rank", local_rank, nodes[node_rank], "process")
    return sum(nodes[:node_rank]) + local_rank


def coordinates_of(nodes: Sequence[int], rank: int) -> Coordinates:
    """Turn a rank into coordinates, the inverse of ``rank_of``.

    >>> coordinates_of((8, 8, 8), rank=21)
    Coordinates(rank=21, node_rank=2, local_rank=5)
    >>> coordinates_of((2, 1), rank=2)
    Coordinates(rank=2, node_rank=1, local_rank=0)
    """
    nodes = _cluster(nodes)
    rank = _index("rank", rank, sum(nodes), "process")
    ends = list(accumulate(nodes))  # the first rank after each node
    node_rank = next(i for i, end in enumerate(ends) if rank < end)
    return Coordinates(rank, node_rank, rank - (ends[node_rank] - nodes[node_rank]))


def describe(nodes: Sequence[int], gpus_per_node: int) -> str:
    """Say how many ranks a launch starts and how many GPUs it leaves idle.

    >>> print(describe((8, 8, 8), gpus_per_node=16))
    24 ranks on 3 nodes: 24 of 48 GPUs stay idle (8 + 8 + 8)
    >>> print(describe((4,), gpus_per_node=4))
    4 ranks on 1 node: no GPU stays idle
    >>> describe((2, 4), gpus_per_node=2)
    Traceback (most recent call last):
    ValueError: node 1 has 2 GPUs for 4 processes, but each process needs its own
    """
    nodes, gpus = _cluster(nodes), whole("gpus_per_node", gpus_per_node, low=1)
    if max(nodes) > gpus:
        raise ValueError(
            f"node {nodes.index(max(nodes))} has {_count(gpus, 'GPU')} for "
            f"{max(nodes)} processes, but each process needs its own"
        )
    idle = [gpus - num_processes for num_processes in nodes]
    sum_of = f" ({' + '.join(map(str, idle))})" if len(nodes) > 1 else ""
    tally = f"{sum(idle)} of {gpus * len(nodes)} GPUs stay idle{sum_of}"
    tally = tally if any(idle) else "no GPU stays idle"
    return f"{_count(sum(nodes), 'rank')} on {_count(len(nodes), 'node')}: {tally}"


def launch_commands(
    nodes: Sequence[int], script: str, host: str = "node0"
) -> list[str]:
    """Write the torchrun command to type on each node, by node.

    Several nodes meet at ``host``, which may be any of them, on a port that must be
    free there.

    >>> launch_commands((4,), "train.py")
    ['torchrun --standalone --nproc-per-node 4 train.py']
    """
    nodes = _cluster(nodes)
    if len(nodes) == 1:
        return [f"torchrun --standalone --nproc-per-node {nodes[0]} {script}"]
    head = f"torchrun --nnodes {len(nodes)} --rdzv-backend c10d --rdzv-id job1 "
    head += f"--rdzv-endpoint {host}:29400 --nproc-per-node"
    return [f"{head} {num_processes} {script}" for num_processes in nodes]


def visible_devices(
    value: str | None, num_gpus: int, uuids: Sequence[str] = ()
) -> list[int | str]:
    """Read CUDA_VISIBLE_DEVICES: entry i is the physical GPU behind ``cuda:i``.

    If the variable is not set (None), all GPUs are visible; the empty string hides all.
    The list ends before the first entry that names no GPU, and a GPU that is named
    twice hides all. A process sees at most one MIG instance, which is returned as its
    id.

    Args:
        value: indices, or UUIDs as ``nvidia-smi -L`` prints them, or beginnings of
            UUIDs that fit one GPU only; separated by commas.
        num_gpus: GPUs in the machine.
        uuids: of these GPUs, by index; needed if value has UUIDs.
    Raises:
        ValueError: if value has UUIDs, but ``uuids`` does not name every GPU.
    Source:
        CUDA Programming Guide, "CUDA Environment Variables"; for GPUs named twice,
        torch.cuda._parse_visible_devices.

    >>> visible_devices("2,1", num_gpus=4), visible_devices("0,2,-1,1", num_gpus=4)
    ([2, 1], [0, 2])
    >>> visible_devices("GPU-8a", 2, uuids=["GPU-31bb", "GPU-8a40"])
    [1]
    """
    num_gpus = whole("num_gpus", num_gpus, low=0)
    if value is None:
        return list(range(num_gpus))
    entries, by_uuid = value.split(","), value.startswith("GPU-")
    if value.startswith("MIG-"):
        return entries[:1]
    if by_uuid and len(uuids) != num_gpus:
        raise ValueError(f"{value!r} needs {num_gpus} UUIDs, not {len(uuids)}")
    gpus: list[int | str] = []
    for entry in entries:
        if by_uuid:
            prefix = entry if entry.startswith("GPU-") else "no GPU"
            found = [i for i, uuid in enumerate(uuids) if uuid.startswith(prefix)]
        else:  # as C's strtoul reads: "1gpu" is 1, "gpu1" no number
            digits = re.match(r"\+?([0-9]+)", entry.strip())
            found = [int(digits[1])] if digits and int(digits[1]) < num_gpus else []
        if len(found) != 1:
            break
        if found[0] in gpus:
            return []
        gpus += found
    return gpus


def device_of(local_rank: int, visible: Sequence[int | str]) -> int | str:
    """Return the physical GPU of a process: ``cuda:<local_rank>`` among the visible.

    >>> device_of(1, visible_devices("6,3", num_gpus=8))
    3
    """
    return visible[_index("local_rank", local_rank, len(visible), "visible GPU")]


def _index(name: str, value: int, size: int, what: str) -> int:
    value = whole(name, value, low=-(10**9))
    if not 0 <= value < size:
        bound = f"0 to {size - 1}" if size > 1 else "0 only" if size else "none"
        verb = "has" if size == 1 else "have"
        raise ValueError(
            f"{name} is {value}, but the {_count(size, what)} {verb} {name} {bound}"
        )
    return value


def _cluster(nodes: Sequence[int]) -> tuple[int, ...]:
    if isinstance(nodes, (int, str)) or not len(nodes):
        raise ValueError(f"nodes must list processes by node: (8, 8), not {nodes!r}")
    return tuple(whole(f"nodes[{i}]", n, low=1) for i, n in enumerate(nodes))


def _count(number: int, thing: str) -> str:
    plural = "es" if thing.endswith("ss") else "s"
    return f"{number} {thing}{'' if number == 1 else plural}"
