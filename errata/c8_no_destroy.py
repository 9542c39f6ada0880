"""A group that is never ended.

runs on: 2 ranks
outcome: runs
hardware: GPU
chapter: ch4_ranks

The worker ends without `destroy_process_group`. With gloo you are not told. With nccl,
PyTorch warns at exit, since a rank that still talks while another has gone can hang
(not run here: no GPU). End the group last.
"""

# %% wrong
dist.barrier()  # the last line of the training
print("the group still lives:", dist.is_initialized())

# %% right
dist.barrier()
dist.destroy_process_group()
print("the group still lives:", dist.is_initialized())
