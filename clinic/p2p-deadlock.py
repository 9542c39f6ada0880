r"""Deadlock: both ranks send first and receive afterwards.

class: process group
symptom: hang
runs on: 2 ranks
chapter: ch6_model_parallel
signature: ranks 0–1 wait in `dist\.send\(mine, dst=other\)`

You see: both ranks are stuck in `dist.send`, and after the timeout they say "Timed out
waiting for send operation to complete". With NCCL, Python goes on and stops at the next
`.item()`. `DETAIL` does not help, because it checks only collectives.

Cause: `dist.send` returns only when the other side has received, so each waits for a
`recv` that comes after the other's `send`.

Cure: post both at once: `batch_isend_irecv`, or `isend` and then `recv`; or let even
ranks send first and odd ranks receive first.

Next time: run `py-spy dump` on both ranks. If both are in `send` to each other, this is
the cause.

Links: https://docs.pytorch.org/docs/stable/distributed.html (batch_isend_irecv)
"""

# %% given
other = 1 - rank
mine, theirs = torch.full((2,), float(rank)), torch.empty(2)

# %% broken
dist.send(mine, dst=other)
dist.recv(theirs, src=other)
print("got", theirs.tolist())

# %% fixed
request = dist.isend(mine, dst=other)
dist.recv(theirs, src=other)
request.wait()
print("got", theirs.tolist())

# %% signs
# maybe: Timed out waiting (?:\d+ms )?for send operation to complete
# with: distributed_c10d\.py", line \d+, in send\b
