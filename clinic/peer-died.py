r"""Connection closed by peer: another rank has died.

class: process group
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: rank 0: RuntimeError: .*Connection (?:closed|reset) by peer

You see: a rank with good data fails in a collective: "Connection closed by peer" or
"Connection reset by peer", whichever comes first. With NCCL it says "remote process
exited or there was a network error".

Cause: the other end of the connection is gone. Its process raised, was killed for
memory, or called `exit`. What you read is the echo.

Cure: there is nothing to repair on the rank that complains. Repair the first failure.

Next time: look for the earliest error in the logs of the *other* ranks; torchrun writes
it under "Root Cause". If there is no traceback but exit code -9, the machine ran out of
memory.

Links: https://github.com/facebookresearch/PyTorch-BigGraph/issues/152 (look higher up in the logs)
https://github.com/pytorch/pytorch/issues/75512 (a sender that leaves too early)
"""

# %% given
import os
from pathlib import Path

if rank == 1:
    Path("part1.txt").write_text("4 5 six")


def numbers(path, skip):
    words = Path(path).read_text().split()
    good = [word for word in words if word.isdigit()]
    if len(good) < len(words) and not skip:
        print("ValueError: invalid literal in", path)
        os._exit(1)  # what an uncaught exception does to a process
    return torch.tensor([int(word) for word in good][:2])


# %% broken
batch = torch.zeros(2, dtype=torch.int64)
if rank == 1:
    batch = numbers("part1.txt", skip=False)
dist.broadcast(batch, src=1)
print(batch.tolist())

# %% fixed
batch = torch.zeros(2, dtype=torch.int64)
if rank == 1:
    batch = numbers("part1.txt", skip=True)
dist.broadcast(batch, src=1)
print(batch.tolist())

# %% signs
# echo: (?:gloo.*|\]:\d+:? |errno: 104 - |RuntimeError: |[Nn][Cc][Cc][Ll].*|socket.*)Connection (?:closed|reset) by peer(?!')
# echo: Connection (?:closed|reset) by peer ?[\[<]
# echo: remote process exited or there was a network error
# echo: This is typically caused by a remote worker
# echo: NCCL communicator was aborted
# echo: remote process exiting prematurely
# echo: closed by remote peer|Horovod has been shut down
# echo: pair\.cc:\d+\] .*(?:Broken pipe|Read (?:error|timeout))
# echo: ncclRemoteError
# echo: NET/IB ?: Got completion (?:from peer .*)?with (?:error|status)[= ](?:5|10|11|12|13)\b
# echo: Socket recv failed while polling
