"""Each collective once, as tutorials show them, with NCCL and streams."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, n = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
here = torch.device("cuda", torch.cuda.current_device())


def mine(*shape):
    """Return a tensor full of this rank's number plus one."""
    return torch.full(shape or (2,), float(rank + 1), device=here)


x = mine()
dist.all_reduce(x, op=dist.ReduceOp.AVG)
assert x.tolist() == [(n + 1) / 2] * 2
x = mine()
dist.broadcast(x, src=1)
assert x.tolist() == [2.0, 2.0]
x = mine()
dist.reduce(x, dst=0, op=dist.ReduceOp.MAX)
assert rank or x.tolist() == [n, n]
parts = [torch.empty(2, device=here) for _ in range(n)]
dist.all_gather(parts, mine())
assert [part[0].item() for part in parts] == [i + 1 for i in range(n)]
whole = torch.empty(2 * n, device=here)
dist.all_gather_into_tensor(whole, mine())
assert torch.equal(whole, torch.cat(parts))
part = torch.empty(1, device=here)
dist.reduce_scatter_tensor(part, mine(n))
assert part.item() == n * (n + 1) / 2
dist.reduce_scatter(part, [mine(1) for _ in range(n)], op=dist.ReduceOp.SUM)
assert part.item() == n * (n + 1) / 2
uneven = torch.empty(sum(range(1, n + 1)), device=here)
dist.all_to_all_single(
    uneven, mine(n * (rank + 1)), [i + 1 for i in range(n)], [rank + 1] * n
)
assert uneven.sum().item() == sum(i * i for i in range(1, n + 1))
dist.all_to_all(parts, [mine() for _ in range(n)])
assert [part[0].item() for part in parts] == [i + 1 for i in range(n)]
gathered = [torch.empty(2, device=here) for _ in range(n)] if rank == 0 else None
dist.gather(mine(), gathered, dst=0)
dist.scatter(x, gathered, src=0)
assert x.tolist() == [rank + 1.0] * 2
ring = [
    dist.P2POp(dist.isend, mine(), (rank + 1) % n),
    dist.P2POp(dist.irecv, x, (rank - 1) % n),
]
for work in dist.batch_isend_irecv(ring):
    work.wait()
assert x.tolist() == [(rank - 1) % n + 1] * 2
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    work = dist.all_reduce(x, async_op=True)
work.wait()
torch.cuda.current_stream().wait_stream(side)
half = dist.new_group(list(range(0, n, 2)))
if rank % 2 == 0:
    dist.all_reduce(x, group=half)
names = [None] * n
dist.all_gather_object(names, f"rank {rank} on {here}")
dist.barrier(device_ids=[here.index])
if rank == 0:
    print(names, dist.get_backend())
dist.destroy_process_group()
