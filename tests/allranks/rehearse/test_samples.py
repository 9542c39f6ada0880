"""Which samples are read, and what counts as a step."""

import copy

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from allranks.rehearse import records, replicas, samples, tables


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
    epoch = records.Epoch("train.py:1", 4)
    epoch.add([kind(2), kind(0)])
    assert epoch.whole and epoch.indices == [2, 0]
    epoch.add(["key"])
    assert not epoch.whole


def test_what_is_not_known_of_a_pass_is_not_counted():
    """A number that is too small would be wrong."""
    epoch = records.Epoch("train.py:1", 4)
    epoch.add(["key"])
    table = tables.samples([records.Record(rank=0, epochs=[epoch])])
    assert table.rows == [["train.py:1", "1", "unknown", "4", "rank 0"]]


def test_optimizers_that_step_one_after_another_make_one_step():
    """As with one for the matrices and one for the rest, or those of a GAN."""
    seen = replicas.Replicas([], guard=False, patience_s=1)
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
    seen = replicas.Replicas([], guard=False, patience_s=1)
    models = [torch.nn.Linear(1, 1) for _ in range(20)]
    for model in models:
        seen.add_ddp_model(model)
    assert list(seen.ddp_models) == models


def test_an_optimizer_that_was_copied_is_followed():
    """Nobody has made it, so it is known from its first step on."""
    seen = replicas.Replicas([], guard=False, patience_s=1)
    made = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    seen.add_optimizer(made)
    copied = copy.deepcopy(made)
    seen.before_step(copied)
    assert list(seen.optimizers) == [made, copied]
