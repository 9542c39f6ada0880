r"""PytorchStreamWriter failed, or Errno 28: the disk is full.

class: checkpoint
symptom: crash
runs on: one process
chapter: ch3_save_load
signature: unexpected pos|PytorchStreamWriter failed|No space left

You see: `PytorchStreamWriter failed writing file data/3: file write failed`, `unexpected pos
640 vs 534`, `[Errno 28] No space left on device` or `Disk quota exceeded`. The other
ranks lose a peer or time out.

Cause: the folder's disk, or your share of it, has no room for another checkpoint. With
an optimizer like Adam it is three times as large as the weights, on each machine that
saves. torch notices that a write came up short, but its archive writer then finds a
wrong position when it closes the file, and that second error hides the first.

Cure: make room: keep only the last few checkpoints, and save to a disk that has room.
Save to a new name and rename it at the end, so that the last good file is still there
when this one fails.

Next time: `df -h .` and `df -i .` (the number of files is limited, too), and `quota
-s`, before the start. You need room for at least two checkpoints and the one that is
being written.

Links: https://github.com/SWivid/F5-TTS/issues/458 (rank 0, at the end of an epoch)
https://github.com/innnky/so-vits-svc/issues/46 (both messages, in a spawned process)
https://github.com/pytorch/pytorch/issues/10577 (the words of torch 1.0, and a full server)
"""

# %% given
import errno
import io
import os
import shutil


class Disk(io.BytesIO):
    """A file on a disk that has room for 1 KiB."""

    def write(self, data):
        if self.tell() + len(data) > 1024:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


state = {"weights": torch.ones(10_000), "step": 1}
old, new = Disk(b"the last good one"), Disk()

# %% broken
torch.save(state, old)  # in the place of the last good one

# %% fixed
try:
    torch.save(state, new)
except (OSError, RuntimeError) as error:
    print(f"not saved ({type(error).__name__}); the last one is still there")
print(old.getvalue())

# %% signs
# PytorchStreamWriter failed writing file
# inline_container\.cc:\d+\] ?\. unexpected pos \d+ vs \d+
# torch: No space left on device
# torch: Disk quota exceeded
# fd \d+ failed with (?:No space left|Disk quota|Input/output error)
# unless: /dev/shm|torch_shm|shared memory
# unless: pip install|Could not install packages|did not complete successfully
