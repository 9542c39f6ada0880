"""Which samples are read, and what counts as a step."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from allranks.rehearse import findings, samples, tables, training


class NoLength:
    """A data set that only a sampler can read."""

    def __getitem__(self, index):
        """Return a sample."""
        return index


def test_a_data_set_without_a_length_is_followed():
    """With a sampler, torch does not ask for a length either."""
    followed = samples.Samples(lambda: 0)
    followed.begin(DataLoader(NoLength(), sampler=[3, 1]))
    assert followed.newest().num_samples == -1


@pytest.mark.parametrize("kind", [int, np.int64, torch.tensor])
def test_indices_of_any_type_are_counted(kind):
    """NumPy's permutation gives NumPy's numbers."""
    epoch = samples.Epoch("train.py:1", 4)
    epoch.add([kind(2), kind(0)])
    assert epoch.whole and epoch.indices == [2, 0]
    epoch.add(["key"])
    assert not epoch.whole


def test_what_is_not_known_of_a_pass_is_not_counted():
    """A number that is too small would be wrong."""
    epoch = samples.Epoch("train.py:1", 4)
    epoch.add(["key"])
    told = {"rank": 0, "epochs": [epoch.facts() | {"loader": 0}]}
    _, _, rows, _ = tables._data([told])
    assert rows == [["train.py:1", "1", "unknown", "4", "rank 0"]]


def test_optimizers_that_step_one_after_another_make_one_step():
    """As with one for the matrices and one for the rest, or those of a GAN."""
    seen = training.Training([], guard=False, patience_s=1)
    weight = torch.nn.Parameter(torch.ones(1))
    first, second = (torch.optim.SGD([weight], lr=0.1) for _ in range(2))
    for _ in range(3):
        seen.after_step(first)
        seen.after_step(second)
    assert seen.num_steps == 3
    seen.after_step(first)
    seen.after_step(first)
    assert seen.num_steps == 5


def test_models_keep_their_order():
    """That of their addresses is another on each rank."""
    seen = training.Training([], guard=False, patience_s=1)
    models = [torch.nn.Linear(1, 1) for _ in range(20)]
    for model in models:
        seen.wraps(model)
    assert list(seen.wrappers) == models


def test_jobs_are_told_apart_by_when_their_ranks_began():
    """Each rank's second process belongs to the second job."""
    began = [(0, 1.0, 10), (1, 1.5, 11), (1, 3.0, 13), (0, 3.5, 12)]
    records = [
        {"rank": rank, "began": at, "pid": pid, "host": ""} for rank, at, pid in began
    ]
    assert [[r["pid"] for r in job] for job in findings.jobs(records)] == [
        [10, 11],
        [12, 13],
    ]
