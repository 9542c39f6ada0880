"""The model deals samples as torch's classes do, and as live ranks read them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from allranks.topics import Sampler
from allranks.topics.batches import figure
from allranks.topics.batches.sums import samples_per_rank, steps_per_epoch


def state(**changes) -> dict:
    """Return a state, by what differs from the default one."""
    return {**Sampler().state, **changes}


STATES = st.builds(
    state,
    num_samples=st.integers(1, 60),
    world_size=st.integers(1, 16),
    batch_size=st.integers(1, 9),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    loader_drop_last=st.booleans(),
    epoch=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)


@settings(max_examples=40, deadline=None)
@given(STATES)
def test_every_rank_reads_what_its_loader_reads(s):
    """A DataLoader on a DistributedSampler reads the same, as in a training script."""
    facts = Sampler.compute(**s)
    for rank in range(s["world_size"]):
        ours = DistributedSampler(
            range(s["num_samples"]),
            num_replicas=s["world_size"],
            rank=rank,
            shuffle=s["shuffle"],
            seed=s["seed"],
            drop_last=s["drop_last"],
        )
        ours.set_epoch(s["epoch"])
        last = s["loader_drop_last"]
        loader = DataLoader(ours.dataset, s["batch_size"], sampler=ours, drop_last=last)
        assert facts["batches"][rank] == [batch.tolist() for batch in loader]


@settings(max_examples=40, deadline=None)
@given(STATES)
def test_the_counts_add_up(s):
    """Each sample is read or left out, and counts follow the formulas."""
    facts = Sampler.compute(**s)
    sizes = s["num_samples"], s["world_size"]
    reads = [i for rank in facts["batches"] for batch in rank for i in batch]
    left = facts["left_out"]["sampler"] + facts["left_out"]["loader"]
    assert sorted(set(reads) | set(left)) == list(range(s["num_samples"]))
    assert len(set(reads)) + len(left) == s["num_samples"]
    assert facts["share"] == samples_per_rank(*sizes, s["drop_last"])
    if s["drop_last"] == s["loader_drop_last"]:
        args = sizes[0], s["batch_size"], sizes[1], s["drop_last"]
        assert facts["steps"] == steps_per_epoch(*args)
    assert not (s["drop_last"] and facts["repeated"])
    assert s["drop_last"] or not facts["left_out"]["sampler"]


def test_without_set_epoch_every_epoch_is_the_first():
    """Without set_epoch all epochs are equal, and with it no two of the three are."""
    told = [Sampler.compute(**state(epoch=e))["batches"] for e in range(3)]
    deaf = [
        Sampler.compute(**state(epoch=e, set_epoch=False))["batches"] for e in range(3)
    ]
    assert deaf == [told[0]] * 3
    assert told[0] != told[1] != told[2] != told[0]
    orders = [Sampler.compute(**state(epoch=e))["orders"] for e in range(3)]
    assert orders[0] == [order for order, *_ in orders]  # the next ones are known
    assert orders[0][1][0::4] == [i for batch in told[1][0] for i in batch]
    assert "replays epoch 0" in Sampler(epoch=2, set_epoch=False).facts["summary"]


def test_the_picture_marks_what_comes_again():
    """Only the place of the repetition is marked, not the sample's first place."""
    lines = repr(Sampler(shuffle=False)).splitlines()
    assert lines[:3] == ["rank  step 0  step 1", "0     0 4     8", "1     1 5     9"]
    assert lines[3].split() == ["2", "2", "6", "0", "(again)"]
    long = repr(Sampler(num_samples=40, batch_size=1)).splitlines()
    assert long[0].endswith("step 5  4 more") and long[1].endswith("…")


@pytest.mark.parametrize("set_epoch", [True, False])
def test_live_ranks_read_what_the_model_says(set_epoch):
    """They agree in the third epoch of a training, with samples that come twice."""
    x = Sampler(world_size=3, epoch=2, set_epoch=set_epoch)
    measured = x.measure()
    assert measured["equal"] and measured["batches"] == x.facts["batches"]
    words = "3 real ranks read 12 samples in 2 steps: what the model says, in order."
    assert measured["summary"] == words


def test_a_difference_is_named(monkeypatch):
    """The summary names the difference, and more than 8 ranks are refused."""

    def read(state):
        from torch.distributed import get_rank

        return [[1, 3]] if get_rank() else [[0, 2], [4]]

    monkeypatch.setattr(figure, "_read", read)
    measured = Sampler(world_size=2, num_samples=6, shuffle=False).measure()
    assert not measured["equal"]
    assert measured["summary"] == "Step 1 of rank 1: [5] expected, nothing read."
    with pytest.raises(ValueError, match="more than 8"):
        Sampler(world_size=9).measure()
