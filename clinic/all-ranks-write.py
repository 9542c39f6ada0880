r"""PytorchStreamReader failed: all ranks save to the same file.

class: checkpoint
symptom: crash
runs on: 2 ranks
chapter: ch3_save_load
signature: RuntimeError: PytorchStreamReader failed

You see: a checkpoint that cannot be read: `PytorchStreamReader failed reading zip
archive`, `EOFError`, or a size that does not match. Most of the time, though, it works.

Cause: the script runs W times, so W processes write one file. Opening the file empties
it while others are still writing, and the bytes of the last one may cover only the
beginning of another's longer file. (Here a barrier puts the writes in an order in which
they do harm.) An interrupted download or a full disk causes the same messages.

Cure: rank 0 alone saves, under a temporary name, and then renames the file, since a
rename is all or nothing. A barrier follows before any rank reads.

Next time: compare the file's size with a good one's, and run `unzip -t last.pt`. Then
search for `torch.save` without an `if rank == 0`.

Links: https://github.com/open-mmlab/mmagic/issues/876 (a trained checkpoint that cannot be read)
https://github.com/open-mmlab/mmdetection/issues/4835 (resuming fails: failed finding central directory)
"""

# %% given
import os

state = {"weight": torch.zeros(8), "losses": torch.ones(80 - 40 * rank)}

# %% broken
with open("last.pt", "wb") as file:  # as torch.save does with a path
    for writer in range(world_size):
        dist.barrier()  # the race, made certain: all have opened, then
        if rank == writer:
            torch.save(state, file)
dist.barrier()
print({key: list(t.shape) for key, t in torch.load("last.pt").items()})

# %% fixed
if rank == 0:
    torch.save(state, "last.pt.tmp")
    os.replace("last.pt.tmp", "last.pt")
dist.barrier()
print({key: list(t.shape) for key, t in torch.load("last.pt").items()})

# %% signs
# PytorchStreamReader failed
# failed finding central directory
# invalid header or archive is corrupted
# maybe: unexpected EOF.{0,40}The file might be|pickle data was truncated
# maybe: EOFError: Ran out of input
# maybe: does not match expected size.*record size
# storage has wrong (?:byte )?size: expected
# maybe: invalid load key, '\\+x00'|unexpected pos \d+ vs \d+
# with: torch.serialization|torch\.load\(|load_checkpoint|file might be|was truncated|record size|load key|unexpected pos
# unless: No space left on device|PytorchStreamWriter failed|Disk quota exceeded
# maybe: (?:Errno 39\] Directory not empty|FileNotFoundError): .*tmp-checkpoint-
# with: tmp-checkpoint-
# maybe: Invalid magic number; corrupt file|deserializing header: (?:MetadataIncompleteBuffer|incomplete metadata)
# with: corrupt file|deserializing header
# unless: pickle\.load\(from_parent\)
