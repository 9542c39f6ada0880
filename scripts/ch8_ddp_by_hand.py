"""Chapter 8 - DDP from scratch: all of it.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_ddp_by_hand.py
"""

import job  # first, since importing torch takes seconds

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from ch8_per_parameter import compare


class Bucket:
    """Gradients in one flat tensor; its tail says which ranks have them."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        sizes = [*(p.numel() for p in params), len(params)]
        sizes.append(dist.get_world_size())  # the tail: counts, then ranks
        self.flat = params[0].new_zeros(sum(sizes))
        *parts, counts, self.ranks = self.flat.split(sizes)
        triples = zip(params, parts, counts, strict=True)
        self.parts = {p: (x.view_as(p), count) for p, x, count in triples}

    def put(self, p: nn.Parameter) -> None:
        """Put in this rank's part of the mean: zeros without a gradient."""
        part, count = self.parts[p]
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        torch.mul(grad, 1 / dist.get_world_size(), out=part)
        count.fill_(p.grad is not None)


class DDP(nn.Module):
    """Make a module a replica, and average its gradients during backward."""

    def __init__(self, module: nn.Module, caps_mb: tuple = (1, 25)) -> None:
        super().__init__()
        self.module, self.caps_mb, self.arrived = module, caps_mb, {}
        self.sync, self.averages, self.works = True, False, []
        self.params = [p for p in module.parameters() if p.requires_grad]
        tensors = [*module.parameters(), *module.buffers()]
        kinds = [(t.shape, t.dtype, t.requires_grad) for t in tensors]
        dist.all_gather_object(ranks := [None] * dist.get_world_size(), kinds)
        if others := [r for r, found in enumerate(ranks) if found != ranks[0]]:
            raise ValueError(f"ranks {others} have other tensors than rank 0")
        if not self.params:
            raise ValueError("no parameter requires a gradient: use no DDP")
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)
        for p in self.params:
            p.register_post_accumulate_grad_hook(self.ready)
        self.fill(self.params, [float("inf")])

    def fill(self, params: list[nn.Parameter], caps_mb) -> None:
        """Cut parameters into buckets, each full as soon as it has its cap."""
        groups = [[]]
        for p in params:
            cap = caps_mb[min(len(groups), len(caps_mb)) - 1] * 2**20
            if sum(q.nbytes for q in groups[-1]) >= cap:
                groups.append([])
            groups[-1].append(p)
        self.buckets = [Bucket(group) for group in groups]
        self.home = {p: b for b in self.buckets for p in b.parts}

    def forward(self, *args, **kwargs):
        """Run the module; its backward averages, unless in no_sync()."""
        if torch.is_grad_enabled():
            for work in self.works:  # of a backward that has raised
                work.wait()
            self.averages, self.arrived, self.works = self.sync, {}, []
        return self.module(*args, **kwargs)

    def ready(self, param: nn.Parameter) -> None:
        """Put a gradient into its bucket, and send what is complete."""
        if self.averages:
            if not self.arrived:  # finish() will run when backward ends
                engine = torch.autograd.Variable._execution_engine
                engine.queue_callback(self.finish)
            self.home[param].put(param)
            self.arrived[param] = True
            self.send()

    def send(self, batches: int = 1) -> None:
        """Send the buckets that are complete, in one order on all ranks."""
        for bucket in self.buckets[len(self.works) :]:
            if not bucket.parts.keys() <= self.arrived.keys():
                break
            bucket.ranks.zero_()[dist.get_rank()] = batches
            self.works.append(dist.all_reduce(bucket.flat, async_op=True))

    def finish(self, batches: int = 1) -> list[int]:
        """Send the rest, set all .grad; return the ranks that had a batch."""
        for p in [p for p in self.params if p not in self.arrived]:
            self.home[p].put(p)
            self.arrived[p] = True
        self.send(batches)
        for work, bucket in zip(self.works, self.buckets, strict=True):
            work.wait()
            ranks = bucket.ranks.nonzero().flatten().tolist()
            if 0 < len(ranks) < dist.get_world_size():
                bucket.flat.mul_(dist.get_world_size() / len(ranks))
            for p, (part, count) in bucket.parts.items():
                p.grad = part if count else p.grad  # none has it: as before
        for buffer in self.module.buffers() if ranks else ():
            dist.broadcast(buffer, ranks[0])
        came, self.arrived, self.works = [*self.arrived], {}, []
        self.averages = bool(torch._C._current_autograd_node())  # nested?
        if self.caps_mb:  # once, in the order of rank 0's gradients
            number = {p: n for n, p in enumerate(self.params)}
            dist.broadcast_object_list(order := [number[p] for p in came], 0)
            self.fill([self.params[n] for n in order], self.caps_mb)
            self.caps_mb = None
        return ranks

    def shadow(self) -> bool:
        """Join a step without a batch; return False if nobody has one."""
        self.zero_grad()
        return bool(self.finish(batches=0))

    @contextmanager
    def no_sync(self):
        """Add up gradients here; the next pass outside sends their sum."""
        self.sync = False
        try:
            yield
        finally:
            self.sync = True


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, steps=20).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        compare(lambda net: DDP(net, caps_mb=(0.1, 0.3)), args, *place)
