"""Find your node and your GPU.

Ranks: 1, 4
Minutes: 10

Each rank needs to know its node and its GPU. torchrun would tell it both, but here
Slurm or MPI started the ranks, so nothing has set `LOCAL_RANK`. A rank knows only the
name of its own host.

`ex4_1(host)` is called on every rank, with this name. Return `(node_rank, local_rank)`:

- `node_rank` is the number of the rank's node. Nodes are numbered from 0, in the order
  in which they first occur among the ranks 0, 1, 2, …
- `local_rank` numbers the ranks of one host from 0, in rank order.

Hosts may have different numbers of ranks. And some launchers deal the ranks out in
turn: with ranks 0 to 3 on hosts a, b, a, b, the pairs are (0, 0), (1, 0), (0, 1) and
(1, 1).

Hint 1: What would you need to know about the other ranks? Which collective tells you?
Hint 2: Collect all host names in rank order. Your local rank is the number of ranks
before you that run on your host.
Hint 3: `hosts = [None] * dist.get_world_size()`, then `dist.all_gather_object(hosts,
host)`. A list has `count`; `dict.fromkeys` drops repeated names and keeps their order.
"""


# %% solution
def ex4_1(host):
    """Return (node_rank, local_rank) of this rank, which runs on `host`."""
    hosts = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, host)
    nodes = list(dict.fromkeys(hosts))  # each once, in the order of the ranks
    return nodes.index(host), hosts[: dist.get_rank()].count(host)


# %% check
import itertools

LAYOUTS = {
    "all ranks on one node": "zzzz",
    "two nodes of two ranks": "zzaa",
    "nodes of three ranks and of one": "zzza",
    "nodes of one rank and of three": "zaaa",
    "ranks dealt out in turn": "zaza",
    "one rank per node": "zamb",
}


def runs(hosts):
    """Count the runs of equal hosts: one more than the changes of host."""
    return 1 + sum(1 for a, b in itertools.pairwise(hosts) if a != b)


def check(answer, case):
    for name, letters in case.each(LAYOUTS):
        hosts = [f"node-{letter}" for letter in letters[:world_size]]
        host, before = hosts[rank], hosts[:rank]
        nodes, even = list(dict.fromkeys(hosts)), world_size // len(set(hosts))
        got = unpack(answer(host), 2, "a pair (node_rank, local_rank)")
        where = f"with the ranks on {', '.join(hosts)}, rank {rank}'s"
        compare(f"{where} node_rank", got[0], nodes.index(host), {
            "This assumes that all nodes have equally many ranks.": rank // even,
            "The names are sorted; the ranks' order counts.": sorted(nodes).index(host),
            "Nodes have numbers, not ranks.": hosts.index(host),
            "This is the local_rank; it comes second in the pair.": before.count(host),
            "A node that comes again is not a new node.": runs(hosts[: rank + 1]) - 1,
        })  # fmt: skip
        compare(f"{where} local_rank", got[1], before.count(host), {
            "This is the node_rank; it comes first in the pair.": nodes.index(host),
            "This is the global rank.": rank,
            "This counts the rank itself; the first is 0.": before.count(host) + 1,
            "This assumes that all nodes have equally many ranks.": rank % even,
        })  # fmt: skip
