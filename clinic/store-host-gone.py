r"""Broken pipe, sendBytes failed: rank 0 exited before the others.

class: process group
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: DistNetworkError: (?:Failed to recv, got 0 bytes|Broken pipe)

You see: after a training that ended well, the slower ranks fail, or print pages of
"sendBytes failed ... Broken pipe" while they leave.

Cause: rank 0's process hosts the TCPStore (under torchrun the agent of machine 0 does).
Once it has exited, every rank that still asks the store finds a closed socket. Such a
rank may be slower, form one more group, or have an NCCL watchdog that reads a flag.

Cure: let all ranks leave together, by a barrier and `destroy_process_group()` on every
rank before rank 0 ends.

Next time: check whether rank 0's log ends before the first such line. If its training
was complete, nothing is lost.

Links: https://github.com/xorbitsai/inference/issues/4421 (the watchdog's broken pipe)
"""

# %% given
port = torch.tensor(0)
if rank == 0:
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    port += store.port
dist.broadcast(port, src=0)
if rank == 1:
    store = dist.TCPStore("localhost", port.item(), is_master=False)
    store.set("model", "ready")

# %% broken
if rank == 0:
    del store  # its process ends
dist.barrier()
if rank == 1:
    print("the model is", store.get("model").decode())

# %% fixed
if rank == 1:
    print("the model is", store.get("model").decode())
dist.barrier()
if rank == 0:
    del store  # its process ends

# %% signs
# echo: maybe TCPStore server has shut down too early
# echo: DistNetworkError: Broken pipe
# echo: sendBytes failed on SocketImpl.*Broken pipe
# echo: [Ff]ailed to recv, got 0 bytes
# echo: due to an error of type Rendezvous
# echo: RuntimeError: Broken pipe
# echo: (?:send|recv)\w+ failed on SocketImpl
