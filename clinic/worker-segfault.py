r"""DataLoader worker is killed by signal: Segmentation fault.

class: data
symptom: crash
runs on: one process
chapter: ch9_data
signature: DataLoader worker .* is killed by signal: Segmentation fault

You see: `ERROR: Unexpected segmentation fault encountered in worker`, then `DataLoader
worker (pid …) is killed by signal: Segmentation fault`, without a line of your code. In a
distributed job the other ranks then fail in a collective.

Cause: a library that the worker calls (an image or video decoder, a tokenizer, a file
format, an augmentation) read memory that is not its own. It may be broken data, a
library that was not made for fork (its threads did not survive it), or one that was
built for a different version. The memory of the machine is not the reason: then the
signal is "Killed" or "Bus error". (The demo crashes on purpose: it reads the address
0.)

Cure: find the sample and the call with `num_workers=0`, then repair or skip that file, or
replace the library. If it never crashes without workers, start them by
`multiprocessing_context="spawn"` or "forkserver", and tell libraries to use one thread
(`cv2.setNumThreads(0)`).

Next time: `PYTHONFAULTHANDLER=1` in the environment makes each worker print its Python
stack when it crashes.

Links: https://github.com/facebookresearch/pycls/issues/146 (in a distributed training)
https://github.com/pytorch/pytorch/issues/119845 (threads after a fork, with 16 ranks)
"""

# %% given
from pathlib import Path

Path("images.py").write_text('''
import ctypes

from torch.utils.data import Dataset

class Images(Dataset):
    """Decode files, with a decoder that trusts a broken one."""

    def __init__(self, *files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return len(self.files[i]) or ctypes.string_at(0)
''')

# %% broken: python train.py
from torch.utils.data import DataLoader

from images import Images

images = Images(b"abc", b"", b"abcd")  # one file is empty
fork = {"num_workers": 1, "multiprocessing_context": "fork"}
print("decoded:", [size.tolist() for size in DataLoader(images, **fork)])

# %% fixed: python train.py
from torch.utils.data import DataLoader

from images import Images

images = Images(b"abc", b"abcd")
fork = {"num_workers": 1, "multiprocessing_context": "fork"}
print("decoded:", [size.tolist() for size in DataLoader(images, **fork)])

# %% signs
# is killed by signal: Segmentation fault
# Unexpected segmentation fault encountered in worker
