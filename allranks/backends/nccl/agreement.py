"""Whether all ranks of a group have come for the same collective.

If one rank adds up five numbers and another one six, or broadcasts meanwhile, NCCL
hangs or mixes the numbers up, and gloo ends the process. So the ranks tell each other
first what they have come for, and all of them raise one sentence if it differs.
"""

from collections.abc import Callable
from typing import Any

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


def agree(
    rank: int, number: int, mine: str, gather: Callable[[list, torch.Tensor], Any]
) -> None:
    """Raise unless all ranks have come for the same.

    Args:
        rank: of this process in the group.
        number: of the call in the group.
        mine: what this rank has come for.
        gather: fills a list with the rows of all ranks, and waits.

    Raises:
        DistBackendError: if one has come for something else; on all ranks alike.
    """
    said = mine.encode()[:NUM_BYTES].ljust(NUM_BYTES)
    theirs = gather(torch.frombuffer(bytearray(said), dtype=torch.uint8))
    for other, row in enumerate(theirs):
        their = bytes(row.tolist()).decode(errors="replace").rstrip()
        if their != mine[:NUM_BYTES].rstrip():
            error = dist.DistBackendError(
                f"[Rank {rank}] call {number} of the group is {mine} on rank {rank}, "
                f"but {their} on rank {other}: on GPUs, NCCL would hang here, or mix "
                "the numbers up"
            )
            error.in_step = True  # all ranks raise it, so their group can go on
            raise error
