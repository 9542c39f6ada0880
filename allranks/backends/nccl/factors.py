"""The factor of a PREMUL_SUM, which C++ does not tell the ops that get it.

Python writes the reduction into options, and C++ copies it from there into the call.
So the factor is noted when it is written; the call follows in the same thread.
"""

import threading
from typing import Any

from torch._C import _distributed_c10d as c10d

OPTIONS = (
    c10d.AllreduceOptions,
    c10d.AllreduceCoalescedOptions,
    c10d.ReduceOptions,
    c10d.ReduceScatterOptions,
)
PREMUL_SUM = c10d.ReduceOp.RedOpType.PREMUL_SUM
_noted = threading.local()


def _noting(own: property) -> property:
    """Return options' ``reduceOp`` that notes the factor of what is written."""

    def write(options: Any, op: Any) -> None:
        own.__set__(options, op)
        if getattr(op, "op", None) == PREMUL_SUM:  # one without a factor has no op
            _noted.factor = op.factor

    return property(own.__get__, write)


def last() -> Any:
    """Return the factor that this thread has written last: a number, or a tensor."""
    return _noted.factor


PATCHES = [
    (options, "reduceOp", _noting(vars(options)["reduceOp"])) for options in OPTIONS
]
