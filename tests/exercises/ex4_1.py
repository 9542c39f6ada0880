"""Answers to exercise 4.1 that the check must take or refuse."""


# %% right: counts on the way through the ranks, and needs no list methods
def ex4_1(host):
    hosts = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, (host, dist.get_rank()))
    places, sizes = {}, {}
    for name, rank in hosts:
        node = sizes.setdefault(name, [len(sizes), 0])
        places[rank] = tuple(node)
        node[1] += 1
    return places[dist.get_rank()]


# %% wrong: assumes that all nodes have equally many ranks
# = hosts = [None] * dist.get_world_size()
# = dist.all_gather_object(hosts, host)
# = per_node = len(hosts) // len(set(hosts))
# = return dist.get_rank() // per_node, dist.get_rank() % per_node
# %% wrong: counts the rank itself
# ~ get_rank() => get_rank() + 1
# %% wrong: takes the rank for the local rank
# = hosts = [None] * dist.get_world_size()
# = dist.all_gather_object(hosts, host)
# = return list(dict.fromkeys(hosts)).index(host), dist.get_rank()
# %% wrong: sorts the nodes by name
# = hosts = [None] * dist.get_world_size()
# = dist.all_gather_object(hosts, host)
# = return sorted(set(hosts)).index(host), hosts[: dist.get_rank()].count(host)
# %% wrong: numbers a node by its first rank
# = hosts = [None] * dist.get_world_size()
# = dist.all_gather_object(hosts, host)
# = return hosts.index(host), hosts[: dist.get_rank()].count(host)
# %% wrong: returns the local rank only
# = hosts = [None] * dist.get_world_size()
# = dist.all_gather_object(hosts, host)
# = return hosts[: dist.get_rank()].count(host)
