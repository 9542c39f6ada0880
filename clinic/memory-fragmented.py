r"""Out of memory, with gigabytes "reserved by PyTorch but unallocated".

class: performance
symptom: crash
runs on: quoted
chapter: ch11_memory

You see: `CUDA out of memory`, often after hours, and the message says that gigabytes
are `reserved by PyTorch but unallocated`: more than the job asked for.

Cause: the allocator takes memory from the GPU in segments, and keeps them for the next
tensors. A tensor needs one free piece of its size. If samples have different lengths,
the pieces are cut differently each time, until much is free and no piece is large
enough. `torch.cuda.empty_cache()` can return only segments that are wholly free.

Cure: set `PYTORCH_ALLOC_CONF=expandable_segments:True` before the job starts; older
releases, and the message itself, call it `PYTORCH_CUDA_ALLOC_CONF`. Segments then grow
in place, so that there is one large piece. Fewer different lengths help as well: sort
samples into a few classes, or pad to multiples of 256.

Next time: log the peaks, `torch.cuda.max_memory_reserved()` beside
`max_memory_allocated()`, and `memory_stats()["inactive_split_bytes.all.peak"]`. If the
peaks are close, the memory is really used; split blocks that nobody uses are fragments.

Links: https://github.com/kohya-ss/sd-scripts/issues/2029 (6.39 GiB in pieces, and 2 asked for)
https://github.com/sgl-project/SpecForge/pull/739 (samples of different lengths: a late out of memory)
https://github.com/pytorch/pytorch/pull/96995 (how expandable segments work)
https://github.com/pytorch/pytorch/issues/35901 (half of a GPU in pieces)
"""


# %% given
def main():
    for tokens in loader:  # each batch is as long as its longest sample
        train(tokens.cuda())


# %% quoted
# torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.99 GiB. GPU 0 has a
# total capacity of 23.56 GiB of which 1.23 GiB is free. Including non-PyTorch memory,
# this process has 22.27 GiB memory in use. Of the allocated memory 14.73 GiB is
# allocated by PyTorch, and 6.39 GiB is reserved by PyTorch but unallocated. If reserved
# but unallocated memory is large try setting
# PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.

# %% broken
main()

# %% fixed
os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"  # before torch is loaded
main()

# %% signs
# maybe: [1-9]\d*\.\d+ GiB is reserved by PyTorch but unallocated
