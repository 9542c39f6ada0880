"""What a group was asked to do: one record a call, for whoever wants to count them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Call:
    """One operation of one rank.

    Args:
        op: as torch calls it: "all_reduce", "all_gather", "reduce_scatter",
            "broadcast", "reduce", "gather", "scatter", "all_to_all", "barrier", "send",
            "recv"; coalesced ones are told one by one.
        num_bytes: n, as ``topics.collectives.sums`` counts it: of the tensor; of the
            whole where ranks hold parts of it (gather, scatter and their like).
        shapes: of the tensors that go in.
        dtype: of the numbers.
        device: this rank's, such as "cuda:1".
        group: the ranks of the group, by their numbers in the job.
        name: of the group, which is unique in the job.
        number: of the call in its group, counted from 1; messages are counted apart.
        async_op: whether the caller waits itself.
        peer: of a message, the other rank, by its number in the job.
        num_in, num_out: numbers that go in and come out.
    """

    op: str
    num_bytes: int
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    device: str
    group: tuple[int, ...]
    name: str
    number: int
    async_op: bool
    peer: int | None
    num_in: int
    num_out: int

    @classmethod
    def of(
        cls,
        op: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        group: Any,
        number: int,
        async_op: bool,
        peer: int | None,
    ) -> "Call":
        """Describe a call by its tensors; ``peer`` is a rank of the group."""
        # c10d knows a group's members as {rank in the job: place in the group}.
        ranks = dist.distributed_c10d._world.pg_group_ranks.get(group) or {}
        by_place = {place: rank for rank, place in ranks.items()}
        first = [*inputs, *outputs][0]
        return cls(
            op=op,
            # all_gather puts out W times what goes in, reduce_scatter the reverse; the
            # larger side is what nccl-tests calls the size.
            num_bytes=max(sum(t.nbytes for t in side) for side in (inputs, outputs)),
            shapes=tuple(tuple(tensor.shape) for tensor in inputs),
            dtype=first.dtype,
            device=str(first.device),
            group=tuple(ranks),
            name=getattr(group, "group_name", ""),
            number=number,
            async_op=async_op,
            peer=None if peer is None else by_place.get(peer, peer),
            num_in=sum(tensor.numel() for tensor in inputs),
            num_out=sum(tensor.numel() for tensor in outputs),
        )


_listeners: list[Callable[[Call], None]] = []
Other = Callable[[str, int], None]  # gets the op's name, and bytes
_others: list[Other] = []


def watch(listener: Callable[[Call], None]) -> Callable[[], None]:
    """Let a function know of every call from now on, before it begins.

    Args:
        listener: gets a :class:`Call`; it runs in the thread that calls, where the
            stack has the line of the script. DDP's calls come out of backward.

    Returns:
        A function that ends it.
    """
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def tell(call: Call) -> None:
    """Tell all listeners."""
    for listener in tuple(_listeners):
        listener(call)


def watch_others(listener: Other) -> None:
    """Let a function know of collectives on GPU tensors that another backend makes."""
    _others.append(listener)


def tell_others(op: str, num_bytes: int) -> None:
    """Tell all who want to know of what another backend does."""
    for listener in tuple(_others):
        listener(op, num_bytes)
