r"""Default process group has not been initialized: called too early.

class: process group
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: Default process group has not been initialized

You see: one line at the first `all_reduce`, `barrier`, `DistributedSampler` or
`DistributedDataParallel`. It often appears only when the script runs on one GPU,
without torchrun; a config with SyncBN, which asks for the group, is enough.

Cause: `torch.distributed` keeps one default group per process, and `init_process_group`
makes it. Importing the module does not, and torchrun does not either: it only sets the
environment that the call reads.

Cure: call `init_process_group` first; or, where the same code also runs alone, ask
`dist.is_initialized()`. torch 2.13 raises a `ValueError`, versions up to 2.0 a
`RuntimeError`: don't catch it by its type.

Next time: the last line of your own code in the traceback is the call that came too
early.

Links: https://github.com/megvii-model/YOLOF/issues/11 (training on one GPU without init)
https://github.com/zcablii/LSKNet/issues/54 (a SyncBN config; BN instead helps)
"""

# %% given
import torch.distributed as dist

# %% broken
loss, ranks = torch.tensor(2.0), 1
dist.all_reduce(loss)
ranks = dist.get_world_size()
print("mean loss:", loss.item() / ranks)

# %% fixed
loss, ranks = torch.tensor(2.0), 1
if dist.is_initialized():
    dist.all_reduce(loss)
    ranks = dist.get_world_size()
print("mean loss:", loss.item() / ranks)

# %% signs
# Default process group has not been initialized
# Default process group is not initialized|make sure to call init_process_group
# DeepSpeed backend not set|Horovod has not been initialized
# maybe: torch\.distributed (?:is|has) not (?:yet )?(?:been )?initialized|[Pp]rocess group (?:is )?not initialized
# maybe: parallel group is not initialized
