"""How many batches a real DataLoader has prepared, and by which worker."""

import time

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

PATIENCE_S = 20
ASKED = 4  # batches that are taken, one after the other


class _Watched(Dataset):
    """Notes in shared memory which worker loads which batch."""

    def __init__(self, num: int) -> None:
        self.by = torch.full((num,), -1).share_memory_()

    def __len__(self) -> int:
        return len(self.by)

    def __getitem__(self, index: int) -> int:
        worker = get_worker_info()
        self.by[index] = worker.id if worker else 0
        return index

    def prepared(self) -> int:
        """Count the batches that somebody has begun to load."""
        return int((self.by >= 0).sum())


def prepare(num_workers: int, prefetch_factor: int) -> tuple[list[int], list[int]]:
    """Take a few batches, and say how many were prepared after each.

    Returns:
        The number of batches prepared after 1, 2, ... were taken and the loader has
        come to rest; and the worker of each of them.
    """
    room = num_workers * prefetch_factor
    data = _Watched(room + ASKED + 8)
    options = {} if num_workers == 0 else {
        "prefetch_factor": prefetch_factor, "multiprocessing_context": "fork"
    }  # fmt: skip
    batches = iter(DataLoader(data, None, num_workers=num_workers, **options))
    counts = []
    for taken in range(1, ASKED + 1):
        next(batches)
        end = time.monotonic() + PATIENCE_S
        while data.prepared() < taken + room and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.05)  # for one more, if the loader went beyond
        counts.append(data.prepared())
    return counts, data.by[: counts[-1]].tolist()
