"""Whether all ranks of a group have come for the same collective.

If one rank adds up five numbers and another one six, or broadcasts meanwhile, NCCL
hangs or mixes the numbers up, and gloo ends the process. So the ranks tell each other
first what they have come for, and all of them raise one sentence if it differs.
"""

import hashlib
from collections.abc import Callable

import torch
import torch.distributed as dist

from allranks.backends.nccl.calls import Call

NUM_BYTES = 192  # of what a rank says; the same for every call, so that gloo may fail


def what(call: Call, same: str) -> str:
    """Say in words what a rank has come for.

    Args:
        call: the rank's own.
        same: what has to be equal on all ranks, such as "sum of 5", or "" for nothing
            but the op and the dtype.
    """
    kind = str(call.dtype).removeprefix("torch.")
    return f"{call.op} ({same}{', ' if same else ''}{kind})"


def _row(text: str) -> bytes:
    """Return a text of the length of a row; a longer one ends in a digest of it all."""
    told = text.encode()
    if len(told) > NUM_BYTES:
        digest = hashlib.blake2b(told, digest_size=8).hexdigest()
        told = told[: NUM_BYTES - 20] + f"... {digest}".encode()
    return told.ljust(NUM_BYTES)


def agree(
    rank: int, number: int, mine: str, gather: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Raise unless all ranks have come for the same.

    Args:
        rank: of this process in the group.
        number: of the call in the group.
        mine: what this rank has come for.
        gather: returns the rows of all ranks.

    Raises:
        DistBackendError: if one has come for something else; on all ranks alike.
    """
    said = _row(mine)
    theirs = gather(torch.frombuffer(bytearray(said), dtype=torch.uint8))
    for other, row in enumerate(theirs):
        if bytes(row.tolist()) != said:
            their = bytes(row.tolist()).decode(errors="replace").rstrip()
            error = dist.DistBackendError(
                f"[Rank {rank}] call {number} of the group is {mine} on rank {rank}, "
                f"but {their} on rank {other}: on GPUs, NCCL would hang here, or mix "
                "the numbers up"
            )
            error.in_step = True  # all ranks raise it, so their group can go on
            raise error
