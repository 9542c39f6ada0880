r"""Only rank 0 calls the barrier.

class: DDP
symptom: hang
runs on: 2 ranks
chapter: ch5_ddp
signature: rank 0 waits in `dist\.barrier\(\)`

You see: no message. The job hangs after a checkpoint, and after the group's timeout (30
minutes with gloo, 10 with NCCL) it fails in an unrelated collective.

Cause: a barrier returns when all ranks have called it. Here only the rank that saves
calls the barrier, so it waits for ranks that are already in the next step.

Cure: put the barrier after the `if`, where every rank passes.

Next time: have every rank write its stack (`py-spy dump`, or `faulthandler`). The rank
that waits in `barrier` has no partner.

Links: https://github.com/talmolab/sleap-nn/pull/437 (some ranks return before the barrier; training freezes after an epoch)
https://github.com/alan-turing-institute/autocast/pull/386 (rank 0 alone enters the barrier of a save)
"""

# %% broken
if rank == 0:
    torch.save({"step": 1}, "checkpoint.pt")
    dist.barrier()
print("saved")

# %% fixed
if rank == 0:
    torch.save({"step": 1}, "checkpoint.pt")
dist.barrier()
print("saved, and visible:", torch.load("checkpoint.pt"))
