r"""No backend type associated with device type cpu: an NCCL-only group.

class: process group
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: No backend type associated with device type cpu

You see: a collective fails at once on all ranks, often far from the training step, as
for a metric, a length, in `broadcast_object_list` or in a checkpoint library.

Cause: a group has one backend per device type, and `init_process_group("nccl")` gives
it one for `cuda` but none for `cpu`. Before 2.0, torch said "Tensors must be CUDA and
dense".

Cure: move the tensor to the GPU, or give the group both backends by
`init_process_group("cpu:gloo,cuda:nccl")`. It must be named: without a backend, torch 2.13
takes that of the accelerator alone.

Next time: the message names the device that has no backend; print
`dist.distributed_c10d._get_default_group()._device_types` and the tensor's device.

Links: https://github.com/zai-org/CogVLM/issues/328 (fine-tuning with nccl)
https://github.com/mistralai/mistral-inference/issues/252 (a length tensor on the CPU)
"""

# %% given
length = torch.tensor([5 + rank])  # on the CPU

# %% broken
group = dist.new_group(backend="cuda:gloo")
dist.all_reduce(length, op=dist.ReduceOp.MAX, group=group)
print("longest:", length.item())

# %% fixed
group = dist.new_group(backend="cpu:gloo,cuda:gloo")
dist.all_reduce(length, op=dist.ReduceOp.MAX, group=group)
print("longest:", length.item())

# %% signs
# No backend type associated with device type \w+
# Tensors? must be CUDA and dense
