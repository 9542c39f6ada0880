"""The backend "link": gloo, with every message as slow as a link that you choose.

Ranks of one machine exchange tensors in microseconds, so nobody sees there what a
network costs. This backend lets gloo do the work, and calls it done only when a link of
latency α and bandwidth B would have done it. What was started meanwhile goes on, so
overlap, buckets, hierarchies and compression pay off as they do on that link.

A collective begins when its last rank has come and the link is free, and takes what
``allranks.topics.links.sums`` says. The ranks tell each other when they came: all
processes of a machine share one clock. A message between two ranks leaves when those
before it have left, and arrives α later.
"""

import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from allranks.backends.over_gloo import RENAMED, OverGloo
from allranks.backends.work import InOrder, alone
from allranks.topics.links.network import VARIABLE, Network, parse
from allranks.topics.links.sums import seconds

NOTICED = 5  # calls after which this machine's own slowness is judged,
NOTICED_S = 0.1  # and the seconds that they must have taken


class SetLink(OverGloo):
    """A process group on a link.

    Args:
        store, rank, world_size, timeout: as ``OverGloo`` has them.
        ranks: of the group, by their numbers in the job.
        network: the links between all ranks of the job.
    """

    name = "link"

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        world_size: int,
        timeout: timedelta,
        ranks: Sequence[int],
        network: Network,
    ) -> None:
        super().__init__(store, rank, world_size, timeout)
        self._inside: SetLink | None = None
        self._again = dist.PrefixStore("inside", store), rank, world_size, timeout
        self._clock = dist.ProcessGroupGloo(
            dist.PrefixStore("clock", store), rank, world_size, timeout
        )
        self._ranks, self._network = ranks, network
        self._free = self._leaves = self._arrives = 0.0  # time.monotonic()
        self._modeled = self._late = 0.0
        self._operations, self._lock = 0, threading.Lock()
        self._warned, self._in_order = False, InOrder("link")

    def collective(
        self, name: str, num_bytes: int, result: list, start: Callable[[], Work]
    ) -> Work:
        """Start a collective of gloo's; return work that ends as on the link.

        Args:
            name: as ``links.sums.seconds`` calls it.
            num_bytes: n, as it counts them.
            result: the tensors that the work returns.
            start: calls gloo.
        """
        came, inner = time.monotonic(), start()
        link = self._network.between(self._ranks)
        alpha, bandwidth = 1e-6 * link.alpha_us, 1e9 * link.gb_per_s
        takes = seconds(name, num_bytes, self.size(), alpha, bandwidth)

        def complete() -> None:
            # Of ranks that bring different numbers of bytes the slowest one counts.
            most = torch.tensor([came, takes], dtype=torch.double)
            latest = dist.AllreduceOptions()
            latest.reduceOp = dist.ReduceOp.MAX
            self._clock.allreduce([most], latest).wait()
            inner.wait()
            last, longest = most.tolist()
            self._free = max(last, self._free) + longest
            self._sleep_until(self._free, longest)

        return self._in_order.put(complete, result)

    def now(self) -> "SetLink":
        """Return the group that does what is called now: this one or one inside it.

        A callback is called when its work is done, and not where the program is. On
        another rank the program may be further, so what callbacks call (torch's
        PowerSGD does) meets only what they call there.
        """
        if not self._in_order.in_callback():
            return self
        if self._inside is None:
            self._inside = SetLink(*self._again, self._ranks, self._network)
        return self._inside.now()

    def send(self, tensors: list[torch.Tensor], target: int, tag: int = 0) -> Work:
        """Send a tensor; its memory may be used again when its bytes have left."""
        came, inner = time.monotonic(), self._gloo.send(tensors, target, tag)
        takes, alpha = self._message(tensors, target)
        with self._lock:
            begin = max(came, self._leaves)
            self._leaves = begin + takes
        leave = torch.tensor([begin], dtype=torch.double)
        told = self._clock.send([leave], target, tag)

        def complete() -> None:
            told.wait()
            inner.wait()
            self._sleep_until(begin + takes, takes + alpha)

        return alone(complete, tensors)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Work:
        """Receive a tensor; it is there when its last byte would have arrived."""
        leave = torch.zeros(1, dtype=torch.double)
        told = self._clock.recv([leave], source, tag)
        inner = self._gloo.recv(tensors, source, tag)
        takes, alpha = self._message(tensors, source)

        def complete() -> None:
            told.wait()
            inner.wait()
            with self._lock:
                self._arrives = max(leave.item(), self._arrives) + takes
                arrived = self._arrives + alpha
            self._sleep_until(arrived, takes + alpha)

        return alone(complete, tensors, source)

    def recv_anysource(self, *args: Any) -> Work:
        """Refuse: whose link is it?"""
        raise ValueError("the backend 'link' must know whom it receives from: give src")

    def _message(self, tensors: list[torch.Tensor], peer: int) -> tuple[float, float]:
        """Return the seconds that the bytes take, and α."""
        link = self._network.between([self._ranks[self.rank()], self._ranks[peer]])
        return size(tensors) / (1e9 * link.gb_per_s), 1e-6 * link.alpha_us

    def _sleep_until(self, end: float, takes: float) -> None:
        """Sleep; say once per group if this machine falls behind the link."""
        late = time.monotonic() - end
        if late < 0:
            time.sleep(-late)
        if not takes:  # a group of one rank sends nothing
            return
        with self._lock:
            self._operations += 1
            self._modeled += takes
            self._late += max(0.0, late)
            took = self._modeled + self._late
            if self._warned or self._operations < NOTICED or took < NOTICED_S:
                return
            percent = round(100 * self._late / max(self._modeled, 1e-9))
            self._operations = self._modeled = self._late = 0  # the next ones
            self._warned = percent > 50
        if self._warned:
            warnings.warn(
                f"this machine took {percent} % more time than the link that you "
                "set: make that slower, as by eth1,slower=10",
                stacklevel=2,
            )


def size(tensors: Sequence[torch.Tensor]) -> int:
    """Count the bytes of some tensors, of sparse ones with their indices."""
    parts = []
    for tensor in tensors:
        dense = not tensor.is_sparse
        parts += [tensor] if dense else [tensor._indices(), tensor._values()]
    return sum(part.nbytes for part in parts)


# Of each method: what it is called in ``links.sums``, and its bytes n. The first
# argument is what the call fills.
METHODS = {
    "allreduce": ("all_reduce", lambda group, x, *_: size(x)),
    "allreduce_coalesced": ("all_reduce", lambda group, x, *_: size(x)),
    "broadcast": ("broadcast", lambda group, x, *_: size(x)),
    "reduce": ("reduce", lambda group, x, *_: size(x)),
    "_allgather_base": ("all_gather", lambda group, out, *_: out.nbytes),
    "allgather": ("all_gather", lambda group, outs, *_: size(outs[0])),
    "allgather_coalesced": ("all_gather", lambda group, outs, *_: sum(map(size, outs))),
    "_reduce_scatter_base": ("reduce_scatter", lambda group, out, x, *_: x.nbytes),
    "reduce_scatter": ("reduce_scatter", lambda group, out, xs, *_: size(xs[0])),
    "alltoall_base": ("all_to_all", lambda group, out, x, *_: x.nbytes),
    "alltoall": ("all_to_all", lambda group, outs, xs, *_: size(xs)),
    "gather": ("gather", lambda group, outs, xs, *_: group.size() * size(xs)),
    "scatter": ("scatter", lambda group, outs, *_: group.size() * size(outs)),
    "barrier": ("barrier", lambda group, *_: 0),
}


def on_the_link(method: str) -> Callable:
    """Return a method of ``SetLink`` that has gloo do it, as slow as on the link."""
    name, count = METHODS[method]

    def run(self: SetLink, *args: Any, **kwargs: Any) -> Work:
        self = self.now()
        result = args[0] if args and isinstance(args[0], (list, torch.Tensor)) else []
        result = [result] if isinstance(result, torch.Tensor) else result
        return self.collective(
            name,
            count(self, *args),
            result,
            lambda: getattr(self._gloo, method)(*args, **kwargs),
        )

    return run


class All(list):
    """Work that has ended when all of it has."""

    def wait(self) -> None:
        """Wait for each piece."""
        for work in self:
            work.wait()


def together(method: str, whole: int) -> Callable:
    """Return a method that does several of gloo's as one collective of the link's.

    Args:
        method: of gloo's.
        whole: which of its first two arguments has the bytes of all ranks.
    """
    name, _ = METHODS[method]

    def run(self: SetLink, outs: list, tensors: list, opts: Any = None) -> Work:
        self, opts = self.now(), () if opts is None else (opts,)
        call = getattr(self._gloo, method)
        return self.collective(
            name,
            size((outs, tensors)[whole]),
            outs,
            lambda: All(
                [call(*pair, *opts) for pair in zip(outs, tensors, strict=True)]
            ),
        )

    return run


for _name in METHODS:
    setattr(SetLink, _name, on_the_link(_name))
SetLink.allgather_into_tensor_coalesced = together("_allgather_base", 0)
SetLink.reduce_scatter_tensor_coalesced = together("_reduce_scatter_base", 1)
for _name, _new in RENAMED.items():
    setattr(SetLink, _new, getattr(SetLink, _name))


def create(options: Any, _: object = None) -> SetLink:
    """Make a group on the link that ``ALLRANKS_LINK`` names, as torch asks for it.

    Raises:
        ValueError: if the variable is not set, or names no link.
    """
    if not (text := os.environ.get(VARIABLE, "").strip()):
        raise ValueError(f"{VARIABLE} is not set: name a link, such as {VARIABLE}=eth1")
    world_size = options.group_size
    ranks = list(options.global_ranks_in_group) or list(range(world_size))
    where = options.store, options.group_rank, world_size, options.timeout
    return SetLink(*where, ranks, parse(text))
