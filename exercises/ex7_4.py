"""A hierarchy of groups.

Ranks: 2, 4
Minutes: 30
Level: hard

There are `nodes` machines, with L = W / nodes ranks each: ranks 0 to L − 1 are on the
first machine, and so on. Replace `x` (n,) by the sum over all W ranks, in place. For
this, make two kinds of groups: one group for each node, and one group for each local
rank. The network between the nodes is slow, so each rank may pass at most ⌈n / L⌉
numbers to collectives across nodes. Don't use a collective over all ranks, unless there
is only one node, or only one rank per node.

n need not be divisible by L, and may be smaller than L. If `x` holds integers, so must
the sum.

Hint 1: After a sum inside a node, all its ranks hold the same. So what does each of
them need to add up with the other nodes?
Hint 2: Rank r adds up chunk r % L with those ranks of other nodes that have the same
local rank. Then each rank of a node has a different complete chunk.
Hint 3: Every rank has to call `new_group` for every group, its own or not. In a
`broadcast`, `src` is the rank in the job, not in the group.
"""


# %% solution
def ex7_4(x, nodes):
    """Replace x (n,) by the sum over all ranks, in place, first inside the nodes."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    size = world_size // nodes
    node, place = divmod(rank, size)
    inside = [dist.new_group(range(k * size, (k + 1) * size)) for k in range(nodes)]
    across = [dist.new_group(range(k, world_size, size)) for k in range(size)]
    chunks = x.tensor_split(size)
    if size > 1:
        dist.all_reduce(x, group=inside[node])
    dist.all_reduce(chunks[place], group=across[place])
    for source, chunk in enumerate(chunks):
        if size > 1:
            dist.broadcast(chunk, src=node * size + source, group=inside[node])


# %% check
ALLOWED = "all_reduce broadcast all_gather reduce_scatter reduce all_gather_single"
ALLOWED += " reduce_scatter_single all_gather_into_tensor reduce_scatter_tensor"
NUMBERS = (12, torch.float32), (7, torch.float64), (1, torch.int64)
CASES = [(*kind, nodes) for kind in NUMBERS for nodes in {1, 2, world_size}]


def check(answer, case):
    barrier, across, size = dist.barrier, [], world_size

    def note(name, *args, **kwargs):
        groups = (*args, *kwargs.values(), dist.group.WORLD)
        group = next(g for g in groups if isinstance(g, dist.ProcessGroup))
        ranks = dist.get_process_group_ranks(group)
        if len(ranks) == world_size and 1 < size < world_size:
            raise Wrong(f"its {name} is one of all {world_size} ranks.")
        if len({r // size for r in ranks}) > 1:
            sizes = (t.numel() for t in args if isinstance(t, torch.Tensor))
            across.append(max(sizes, default=0))

    only(f"{ALLOWED} new_group", "use collectives of groups.")
    for name in ALLOWED.split():
        spy(dist, name, lambda *args, name=name, **kw: note(name, *args, **kw))
    for n, dtype, nodes in CASES:
        size = world_size // nodes
        case(f"{n} numbers, {nodes} nodes of {size}")
        each = [(torch.arange(n) * 3 + 7 * r**2).to(dtype) for r in range(world_size)]
        x, total, node = each[rank].clone(), sum(each), rank // size
        across.clear()
        returned = answer(x, nodes)
        barrier()
        fault = "The sum was returned in another tensor."
        mistakes = in_place(returned, each[rank], total, fault) | {
            "This is the sum of its own node.":
                sum(each[node * size : (node + 1) * size]),
            "This is the mean, not the sum.": (total / world_size).to(dtype),
        }  # fmt: skip
        if x.shape == total.shape and world_size > 2:
            parts = zip(x.tensor_split(size), total.tensor_split(size))
            right = [i for i, (a, b) in enumerate(parts) if torch.equal(a, b)]
            mistakes[f"Only the chunks {right} of {size} are complete."] = x
        compare(f"rank {rank}'s x", x, total, mistakes)
        if nodes > 1 and sum(across) > (most := -(-n // size)):
            raise Wrong(f"""the sum is right, but rank {rank} gave {sum(across)} numbers
                to groups that span nodes; {most} are enough.""")
