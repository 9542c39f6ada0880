"""Who is who: nodes and processes on one side, ranks on the other."""

import itertools

import traitlets

from allranks import topology
from allranks.explorables.base import Explorable
from allranks.launch import launch
from allranks.pictures import Picture, cluster

MOST = 16  # GPUs of a node, processes of a node, nodes that still fit on a page


class WhoIsWho(Explorable):
    """A cluster in which one process is chosen.

    Traits:
        nodes: processes on each node, by node rank.
        gpus_per_node: GPUs in each machine.
        rank: the chosen process.
        visible: CUDA_VISIBLE_DEVICES on its node; None where it is not set.
    """

    name = "who_is_who"

    nodes = traitlets.List(traitlets.Int(), [2, 2]).tag(sync=True)
    gpus_per_node = traitlets.Int(4).tag(sync=True)
    rank = traitlets.Int(2).tag(sync=True)
    visible = traitlets.Unicode(None, allow_none=True).tag(sync=True)

    @staticmethod
    def compute(nodes, gpus_per_node, rank, visible) -> dict:
        """Say who the chosen process is, which GPU it gets, and how to start it all.

        >>> facts = WhoIsWho.compute([2, 1], gpus_per_node=2, rank=2, visible="1,0")
        >>> facts["node_rank"], facts["local_rank"], facts["gpu"]
        (1, 0, 1)
        """
        description = topology.describe(nodes, gpus_per_node)
        for name, value in (("nodes", len(nodes)), ("GPUs per node", gpus_per_node)):
            if value > MOST:
                raise ValueError(f"{value} {name} do not fit here: at most {MOST}")
        rank, node_rank, local_rank = topology.coordinates_of(nodes, rank)
        gpus = topology.visible_devices(visible, gpus_per_node)
        gpu = gpus[local_rank] if local_rank < len(gpus) else None
        world_size = topology.world_size_of(nodes)
        commands = topology.launch_commands(nodes, "train.py")
        device = f"cuda:{local_rank}, which is GPU {gpu} of the machine"
        if gpu is None:
            device = f"cuda:{local_rank}, which is not visible: an error"
        return {
            "node_rank": node_rank,
            "local_rank": local_rank,
            "world_size": world_size,
            "visible": gpus,
            "gpu": gpu,
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
            "summary": f"{description}. Rank {rank} of {world_size} is local rank "
            f"{local_rank} on node {node_rank}. It uses {device}.",
        }

    @staticmethod
    def picture(nodes, gpus_per_node, rank, visible) -> Picture:
        """Draw the cluster."""
        return cluster(nodes, gpus_per_node)

    def measure(self) -> dict:
        """Launch chapter 4's script on these nodes, under one torchrun each."""
        if self.facts["world_size"] > 8:
            raise ValueError("more than 8 processes are too many for this machine")
        job = launch("ch4_ranks", list(self.nodes), timeout=90)
        lines = ["\n".join(job.lines[rank]) for rank in sorted(job.lines)]
        return {"summary": "\n".join(lines)}


def cases() -> list[dict]:
    """States for the comparison of Python and JavaScript, bad ones included."""
    keys = "nodes", "gpus_per_node", "rank", "visible"
    clusters = [1], [4], [2, 1], [1, 3, 2], [8, 8, 8], [1] * 16, [16, 16]
    values = None, "", "2,1", "0,2,-1,1", "1,1", " 3 , 0x", "GPU-8a", "MIG-1", "+2,07"
    good = [
        (nodes, gpus, rank, visible)
        for nodes in clusters
        for gpus in {max(nodes), max(nodes) + 3, 16}
        for rank in {0, sum(nodes) // 2, sum(nodes) - 1}
        for visible in values
    ]
    bad = itertools.product([[], [0], [2, -1], [3], [9, 1]], [0, 2, 17], [-1, 3], ["0"])
    return [dict(zip(keys, state, strict=True)) for state in (*good, *bad)]
