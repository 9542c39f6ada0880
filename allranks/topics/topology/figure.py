"""Who is who: nodes and processes on one side, ranks on the other."""

import itertools
from typing import Any

import traitlets

from allranks.base.picture import Picture, table
from allranks.launch import launch
from allranks.topics.kit.explorable import Explorable
from allranks.topics.topology import sums
from allranks.topics.topology.picture import cluster

MOST = 16  # GPUs of a node, processes of a node, nodes that still fit on a page
NAMED = 4  # ranks without a GPU that the summary names


class WhoIsWho(Explorable):
    """A cluster in which one process is chosen.

    Traits:
        nodes: processes on each node, by node rank.
        gpus_per_node: GPUs in each machine.
        rank: that of the chosen process.
        visible: CUDA_VISIBLE_DEVICES on every node, by indices; None if it is not set.
    """

    name = "topology"

    nodes = traitlets.List(traitlets.Int(), [2, 2]).tag(sync=True)
    gpus_per_node = traitlets.Int(4).tag(sync=True)
    rank = traitlets.Int(2).tag(sync=True)
    visible = traitlets.Unicode(None, allow_none=True).tag(sync=True)

    @staticmethod
    def compute(
        nodes: list[int], gpus_per_node: int, rank: int, visible: str | None
    ) -> dict[str, Any]:
        """Say who the chosen process is, which GPU it gets, and how to start the job.

        ``without_gpu`` lists the ranks whose ``cuda:<local rank>`` does not exist.

        Raises:
            ValueError: if the cluster is impossible or too large for the figure.

        >>> facts = WhoIsWho.compute([2, 1], gpus_per_node=2, rank=2, visible="1")
        >>> facts["node_rank"], facts["local_rank"], facts["gpu"], facts["without_gpu"]
        (1, 0, 1, [1])
        """
        description = sums.describe(nodes, gpus_per_node)
        for name, value in (("nodes", len(nodes)), ("GPUs per node", gpus_per_node)):
            if value > MOST:
                raise ValueError(f"{value} {name} do not fit here: at most {MOST}")
        rank, node_rank, local_rank = sums.coordinates_of(nodes, rank)
        if visible and any(
            e.strip()[:4] in ("GPU-", "MIG-") for e in visible.split(",")
        ):
            raise ValueError(
                "write indices such as 2,1: this figure knows no UUIDs and no MIG"
            )
        # cuda:i is the i-th of the visible GPUs, and not the machine's GPU i.
        gpus = sums.visible_devices(visible, gpus_per_node)
        if visible is not None:
            description = _tally(nodes, gpus_per_node, len(gpus))
        gpu = gpus[local_rank] if local_rank < len(gpus) else None
        world_size = sums.world_size_of(nodes)
        places = [local for n in nodes for local in range(n)]
        without = [r for r, local in enumerate(places) if local >= len(gpus)]
        commands = sums.launch_commands(nodes, "train.py")
        device = f"uses cuda:{local_rank}, which is GPU {gpu} of the machine"
        if gpu is None:
            device = f"asks for cuda:{local_rank}, which is not visible: an error"
        return {
            "node_rank": node_rank,
            "local_rank": local_rank,
            "world_size": world_size,
            "visible": gpus,
            "gpu": gpu,
            "without_gpu": without,
            "description": description,
            "commands": list(dict.fromkeys(commands)),
            "environment": {
                "RANK": rank,
                "WORLD_SIZE": world_size,
                "LOCAL_RANK": local_rank,
                "LOCAL_WORLD_SIZE": nodes[node_rank],
                "GROUP_RANK": node_rank,
                "GROUP_WORLD_SIZE": len(nodes),
            },
            "summary": f"{description}.{_errors(without)} Rank {rank} of {world_size} "
            f"is local rank {local_rank} on node {node_rank}. It {device}.",
        }

    @staticmethod
    def picture(
        nodes: list[int], gpus_per_node: int, rank: int, visible: str | None
    ) -> Picture:
        """Draw the cluster, or list which rank gets which GPU if some are hidden."""
        if visible is None:
            return cluster(nodes, gpus_per_node)
        gpus = sums.visible_devices(visible, gpus_per_node)
        rows = []
        for rank in range(sum(nodes)):
            _, node_rank, local = sums.coordinates_of(nodes, rank)
            gpu = gpus[local] if local < len(gpus) else "none: an error"
            rows.append([rank, node_rank, f"cuda:{local}", gpu])
        return table(["rank", "node rank", "device", "GPU of the machine"], rows)

    def measure(self) -> dict[str, Any]:
        """Launch chapter 4's script with one torchrun for each of these nodes."""
        if self.facts["world_size"] > 8:
            raise ValueError("more than 8 processes are too many for this machine")
        job = launch("ch4_ranks", list(self.nodes), timeout=90)
        lines = ["\n".join(job.lines[rank]) for rank in sorted(job.lines)]
        return {"summary": "\n".join(lines)}


def _tally(nodes: list[int], gpus_per_node: int, num_visible: int) -> str:
    """Describe the cluster as ``topology.describe`` does, but by its visible GPUs."""
    idle = [max(0, num_visible - num_processes) for num_processes in nodes]
    each, total = " + ".join(map(str, idle)), num_visible * len(nodes)
    words = f"{sum(idle)} of {total} visible GPUs stay idle"
    words += f" ({each})" if len(nodes) > 1 else ""
    if not sum(idle):
        words = "no visible GPU stays idle" if total else "no GPU is visible"
    hidden = gpus_per_node * len(nodes) - total
    if hidden and total:
        words += f", {hidden} {'is' if hidden == 1 else 'are'} hidden"
    ranks, size = sum(nodes), len(nodes)
    plurals = ["s" if number > 1 else "" for number in (ranks, size)]
    return f"{ranks} rank{plurals[0]} on {size} node{plurals[1]}: {words}"


def _errors(ranks: list[int]) -> str:
    if len(ranks) < 2:
        return f" Rank {ranks[0]} finds no GPU: an error." if ranks else ""
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    return f" Ranks {', '.join(map(str, ranks[:NAMED]))}{more} find no GPU: an error."


def cases() -> list[dict]:
    """Return states, impossible ones too, in which Python and JavaScript must agree."""
    keys = "nodes", "gpus_per_node", "rank", "visible"
    clusters = [1], [4], [2, 1], [1, 3, 2], [8, 8, 8], [1] * 16, [16, 16]
    values = None, "", "2,1", "0,2,-1,1", "1,1", " 3 , 0x", "9", "1", "+2,07"
    good = [
        (nodes, gpus, rank, visible)
        for nodes in clusters
        for gpus in {max(nodes), max(nodes) + 3, 16}
        for rank in {0, sum(nodes) // 2, sum(nodes) - 1}
        for visible in values
    ]
    bad = itertools.product([[], [0], [2, -1], [3], [9, 1]], [0, 2, 17], [-1, 3], ["0"])
    ids = "GPU-8a", "MIG-1", "0, GPU-8a,1", "MIG-1,MIG-2", "GPU-", "mig-1"
    bad = [*bad, *(([2, 1], 4, 1, visible) for visible in ids)]
    return [dict(zip(keys, state, strict=True)) for state in (*good, *bad)]
