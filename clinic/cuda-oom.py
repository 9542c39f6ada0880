r"""CUDA out of memory on one rank, and all ranks stop.

class: DDP
symptom: crash
runs on: quoted
chapter: ch5_ddp

You see: `CUDA out of memory` on one rank. The other ranks report something else, and
later: a connection closed by a peer, or ten minutes of silence and NCCL's watchdog. So
the end of the log speaks of a timeout.

Cause: the batch size is per rank, so a batch that filled a GPU before still does, and
DDP adds to it: buckets as large as the gradients, and NCCL's buffers. Ranks do not all
need the same amount. One rank has the longest sequences or the largest images. Rank 0
often holds a checkpoint that was loaded onto its GPU, or the CUDA contexts of processes
that never picked their own GPU.

Cure: find the rank that failed first; the other messages are echoes. Then use a smaller
batch per rank, with gradient accumulation for the rest, and batches of equal work on
all ranks. `gradient_as_bucket_view=True` saves one copy of the gradients. Do not catch
the error and skip the batch on one rank, because the other ranks then wait for it in an
all-reduce.

Next time: if the message's "reserved by PyTorch but unallocated" is large, memory is
fragmented: try `expandable_segments:True`, as the message says. If `nvidia-smi` shows
several of your processes on GPU 0, `torch.cuda.set_device(local_rank)` comes too late.

Links: https://github.com/modelscope/FunASR/issues/2006 (rank 2 has no memory, ranks 3 and 5 a timeout)
https://github.com/facebookresearch/detectron2/issues/2053 (ranks with larger images need more)
https://github.com/dptech-corp/deepmd-pytorch/pull/76 (other ranks' contexts on GPU 0)
"""


# %% given
def train(parts):
    loader = DataLoader(dataset, batch_size=64 // parts, sampler=sampler)
    for i, (x, y) in enumerate(loader, start=1):
        last = i % parts == 0
        with nullcontext() if last else ddp.no_sync():
            (loss(ddp(x), y) / parts).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


# %% quoted
# [rank2]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 336.00
# MiB. GPU  has a total capacity of 79.15 GiB of which 141.25 MiB is free.
# [0] NCCL INFO [Service thread] Connection closed by localRank 2
# [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15734,
# OpType=ALLREDUCE, NumelIn=220084533, NumelOut=220084533, Timeout(ms)=600000) ran for
# 600037 milliseconds before timing out.

# %% broken
ddp = DistributedDataParallel(model, device_ids=[local_rank])
train(parts=1)

# %% fixed
ddp = DistributedDataParallel(model, device_ids=[local_rank])
train(parts=4)

# %% signs
# CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError
# maybe: CUDA error: out of memory|Cuda failure (?:2 )?'out of memory'
# CUDA (?:driver )?[Ee]rror:? out of memory|cuda runtime error \(2\) ?: out of memory|(?:HIP|NPU|XPU) out of memory
# maybe: cudaMalloc failed: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED
