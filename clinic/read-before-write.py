r"""FileNotFoundError: a rank loads what rank 0 has not saved yet.

class: checkpoint
symptom: crash
runs on: 2 ranks
chapter: ch7_collectives
signature: rank 1: FileNotFoundError: \[Errno 2\] No such file or directory: 'last\.pt'

You see: `FileNotFoundError` on ranks other than 0, for a file that is there when you
look. On a shared disk it happens more often.

Cause: nothing makes the other ranks wait while rank 0 saves, so they reach the next
line at once. (Here rank 0 waits for rank 1, so that it loses each time.) A rank that
comes a little later finds half a file, and fails with some other message.

Cure: put a barrier between saving and loading, on all ranks, after the `if`.

Next time: for each file, ask which rank writes it, which ranks read it, and which
collective stands in between. On a network disk a barrier may not suffice: let rank 0
read and broadcast.

Links: https://github.com/allenai/OLMo/pull/234 (read before all nodes had written; a barrier)
https://github.com/huggingface/transformers/pull/10685 (a barrier before the last load)
https://github.com/Lightning-AI/pytorch-lightning/issues/4504 (FileNotFoundError with two GPUs, right after fitting)
"""

# %% broken
if rank == 0:
    dist.barrier()  # the race, made certain: rank 1 is never here first
    torch.save({"step": 1}, "last.pt")
print(torch.load("last.pt"))

# %% fixed
if rank == 0:
    torch.save({"step": 1}, "last.pt")
dist.barrier()
print(torch.load("last.pt"))

# %% signs
# maybe: FileNotFoundError: \[Errno 2\] No such file or directory: '[^']*\.(?:pt|pth|ckpt|tar|bin|distcp)'
# with: \[rank1\]|\[rank2\]|\[rank3\]|\[rank4\]|\[rank5\]|\[rank6\]|\[rank7\]|rank 1:
# unless: \[rank0\]: *FileNotFoundError
