"""Exchanges between ranks that autograd does not see, and that a loss is made of."""

from .operations import SCALES, Operation

CUT = (
    "{}: ranks exchange what has a gradient, and autograd does not see it: what comes "
    "back is a constant for backward, or passes it on as if nothing had been summed. "
    "Use torch.distributed.nn.functional; put a rank's own features back into what it "
    "gathered; and reduce a copy, loss.detach().clone(), if it is only to be shown."
)
JOINS = "cat", "stack"
USES = "mm", "addmm", "bmm", "t", "view", "transpose", "mul"


def cuts(used: list[Operation], size: int) -> list[str]:
    """Return the lines of exchanges that leave a wrong gradient.

    A sum in place does so if it is then divided by ``size``, the number of ranks:
    backward divides as well, though it has summed nothing. What was gathered does so
    unless the rank's own part, which alone has a gradient, is put back in: then a
    tensor that was not gathered is joined with those that were.
    """
    found, waiting = [], []
    for operation in used:
        for line, apart in list(waiting):
            if operation.name in JOINS and operation.takes & apart:
                waiting.remove((line, apart))
                found += [] if operation.takes - apart else [line]
            elif operation.name in USES and operation.takes & apart:
                waiting.remove((line, apart))
                found.append(line)
        if operation.unseen and operation.name.startswith(("allgather", "all_gather")):
            waiting.append((operation.line, operation.gives))
        if operation.summed and operation.name in SCALES:
            factors = [value for _, value in operation.numbers]
            if any(value in (size, 1 / size) for value in factors):
                found.append(operation.line)
    return found
