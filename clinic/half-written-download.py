r"""EOFError: a rank reads a file that is still being downloaded.

class: data
symptom: crash
runs on: 2 ranks
chapter: ch9_data
signature: EOFError: Compressed file ended before the end-of-stream marker

You see: some ranks fail at the first start on a new machine, with an `EOFError`, a
checksum that is wrong, or "File not found or corrupted". The second start works, since
now the file is there, unless two ranks wrote into it at once. Then it stays broken.

Cause: `if not exists: download` asks whether the file is there, not whether it is
whole. All ranks of a node share the folder. The first one creates the file, the others
find it, and read as much of it as has come.

Cure: one process per node downloads (`LOCAL_RANK` 0, or rank 0 on a shared disk) while
the others wait in a barrier. Let it write under a temporary name, and rename the file
when it is whole, so that a download that was killed leaves nothing that looks finished.

Next time: delete the folder with the data, and start the job anew.

Links: https://github.com/pytorch/tutorials/issues/3065 (all ranks download MNIST at once)
https://github.com/Lightning-AI/pytorch-lightning/pull/17732 (a rank checks the file that another is still writing)
https://github.com/yiqiao-yin/deepspeed-course/pull/16 (before the process group exists, every rank believes to be rank 0)
"""

# %% given
import gzip
import os

packed = gzip.compress(bytes(range(256)) * 64)


def download(path, halfway=None):
    with open(path, "wb") as file:
        file.write(packed[: len(packed) // 2])
        file.flush()
        if halfway:
            halfway()
        file.write(packed[len(packed) // 2 :])


# %% broken
if rank == 1:
    dist.barrier()  # the race, made certain: rank 0 has half of the file
if not os.path.exists("train.gz"):
    download("train.gz", halfway=lambda: (dist.barrier(), dist.barrier()))
print(len(gzip.open("train.gz").read()), "bytes")
dist.barrier()

# %% fixed
if rank == 0 and not os.path.exists("train.gz"):
    download("train.gz.part")
    os.replace("train.gz.part", "train.gz")
dist.barrier()
print(len(gzip.open("train.gz").read()), "bytes")

# %% signs
# maybe: Compressed file ended before the end-of-stream marker was reached
# maybe: (?:File|Dataset) not found or corrupted
# with: \[rank0\]|\[rank1\]|\[rank2\]|\[rank3\]|rank 0: |rank 1: |ranks 0
# with: torchrun|torch[./]distributed|ChildFailedError|local_rank|LOCAL_RANK|init_process_group|world_size
# with: multiprocessing[./]spawn|mp\.spawn|ProcessRaisedException|accelerate|deepspeed|ightning
