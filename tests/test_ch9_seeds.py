"""Workers that are forked alike draw alike, unless somebody seeds them."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from scripts import ch9_seeds as script
from tests import shown


def drawn(how, workers):
    """Return what three ranks draw in two epochs, one rank after the other."""
    args = script.parse_args(["--samples=12"])
    found = {}
    for rank in range(3):
        found |= script.read_all(args, how, rank, 3, workers)
    return found


def test_a_generator_per_sample_knows_no_ranks_and_no_workers():
    """Its draws depend on the seed, the epoch and the sample, and on nothing else."""
    none, two = (drawn("generator per sample", workers) for workers in (0, 2))
    assert none == two
    assert len(set(none.values())) == len(none) == 24


def test_a_generator_of_ones_own_is_copied_into_every_worker():
    """Two workers of each rank draw two numbers each, in every epoch the same two."""
    found = drawn("own generator", 2)
    assert len(found) == 24 and len(set(found.values())) == 2
    assert found[0, 0] == found[0, 3] == found[1, 1] != found[0, 6]


def test_the_script_counts_the_different_numbers():
    lines = shown.lines("ch9_seeds", 2)
    said = [line.partition("] ")[2] for line in lines]
    assert said == [
        "before torch 1.9: 4 of 32 different, changed without workers",
        "own generator: 4 of 32 different, changed without workers",
        "one seed for all ranks: 16 of 32 different, changed without workers",
        "seed + rank: 32 of 32 different, changed without workers",
        "generator per sample: 32 of 32 different, unchanged without workers",
    ]


class Told(Dataset):
    """A dataset that learns its epoch from memory that workers share."""

    def __init__(self):
        self.epoch = torch.zeros((), dtype=torch.long).share_memory_()
        self.copied = 0

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.epoch.item(), self.copied


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_tensor_in_shared_memory_tells_persistent_workers_the_epoch(method):
    """The page says so; an attribute stays what it was when they were started."""
    data = Told()
    how = {"persistent_workers": True, "multiprocessing_context": method}
    loader = DataLoader(data, None, num_workers=2, **how)
    for epoch in range(3):
        data.epoch.fill_(epoch)
        data.copied = epoch
        assert list(loader) == [[epoch, 0]] * 4
