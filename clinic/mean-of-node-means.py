r"""Gradients are averaged per node first, but the nodes' sizes differ.

class: silent wrong
symptom: silent
runs on: 3 ranks
chapter: ch7_collectives
signature: mean \S+ instead of
beyond: All ranks hold the same wrong number, so nothing differs. Only a comparison with one process shows it.

You see: after a node has lost a GPU, or in a job of 8 + 4 ranks, training goes on but
converges a little differently. The gradients of the small node's ranks weigh more.

Cause: a hierarchical all_reduce with `AVG` takes a mean of means. Here node 0 has ranks
0 and 1, and node 1 has rank 2 alone, which therefore counts as much as the other two
together. Sums can be added up in stages, but means only if all parts are equally large.

Cure: add up in both stages, and divide by the number of all ranks once, at the end.

Next time: compare one gradient with a flat `dist.all_reduce` after each change of the
hierarchy, on nodes of different sizes too.

Links: https://github.com/pytorch/pytorch/blob/main/torch/distributed/algorithms/model_averaging/hierarchical_model_averager.py (torch's own: groups of each level have one size)
"""

# %% given
node = [0, 1] if rank < 2 else [2]
nodes = {tuple(ranks): dist.new_group(ranks) for ranks in ([0, 1], [2])}
inside = nodes[tuple(node)]
leaders = dist.new_group([0, 2])  # the first rank of each node
x = torch.tensor([[1.0], [3.0], [8.0]][rank])

# %% broken
dist.all_reduce(x, group=inside)
x /= len(node)
if rank in (0, 2):
    dist.all_reduce(x, group=leaders)
    x /= 2
dist.broadcast(x, src=node[0], group=inside)
print(f"mean {x.item():g}")

# %% fixed
dist.all_reduce(x, group=inside)
if rank in (0, 2):
    dist.all_reduce(x, group=leaders)
dist.broadcast(x, src=node[0], group=inside)
x /= world_size
print(f"mean {x.item():g}")

# %% invariant: every rank holds the mean over all ranks
want = 4.0
assert x.item() == want, f"mean {x.item():g} instead of {want:g}"
