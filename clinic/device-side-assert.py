r"""CUDA error: device-side assert triggered (label or index too large).

class: data
symptom: crash
runs on: quoted
chapter: ch5_ddp

You see: `CUDA error: device-side assert triggered`, often reported by NCCL's watchdog
or in the next collective; the other ranks time out or lose a peer. Further up the log
has `Assertion ... failed` once for each thread, with the name of a kernel.

Cause: a kernel was given an index outside of its range: a class number that is not
below the number of classes, a token id beyond the embedding. Kernels run later than the
line that starts them, so the traceback may point anywhere; in a distributed job it
mostly points to communication. The assertion also breaks the CUDA context: every later
call of that process fails, NCCL's too.

Cure: repair what the assertion names, `t >= 0 && t < n_classes` for a loss, `index out of
bounds` for a lookup: compare `labels.max()` with the number of classes, and
`input_ids.max()` with `embedding.num_embeddings`, on the rank that printed it.

Next time: `CUDA_LAUNCH_BLOCKING=1` makes the traceback point to the line. Or run that batch
on the CPU: there the same mistake is a readable `IndexError`.

Links: https://github.com/modelscope/ms-swift/issues/8371 (told by the watchdog of rank 11)
https://github.com/NVIDIA/nccl/issues/1504 (told by NCCL: Cuda failure 710)
https://github.com/pytorch/pytorch/issues/126544 (why the watchdog ends the process)
"""

# %% quoted
# [rank11]:[E318 09:26:18.141499142 ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID
# 0(default_pg) Rank 11] Process group watchdog thread terminated with exception: CUDA
# error: device-side assert triggered

# %% broken
head = nn.Linear(width, 10).cuda()  # classes 0 to 9
labels = batch["label"].cuda()  # 1 to 10 in this file
loss = nn.functional.cross_entropy(head(x), labels)

# %% fixed
head = nn.Linear(width, 10).cuda()  # classes 0 to 9
labels = batch["label"].cuda() - 1  # 1 to 10 in this file
loss = nn.functional.cross_entropy(head(x), labels)

# %% signs
# exception: CUDA error: device-side assert triggered
# torch: CUDA error: device-side assert triggered
# [Cc]uda failure (?:710 )?'device-side assert triggered
