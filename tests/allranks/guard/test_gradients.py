"""What ranks tell about their gradients is read by name, and judged by their mean."""

import pytest
import torch

from allranks.guard.digests import sketch
from allranks.guard.exchange import Exchange, GuardError
from allranks.guard.gradients import Facts, Gradient, judge

SYNCED, LOCAL = torch.tensor([1.0, 2.0, 9.0]), torch.tensor([3.0, 4.0, 25.0])


def told(*rows):
    """Return what ranks tell about one gradient; each row has the arguments of pack."""
    table = torch.stack([Facts.pack(*row) for row in rows])[:, None]  # (W, 1, 9)
    return Facts.unpack(table)


def test_each_fact_is_read_under_the_name_under_which_it_was_written():
    """Two ranks hold shards 1 and 0; only the first has made a gradient."""
    facts = told((SYNCED, LOCAL, True, True, 1), (2 * SYNCED, LOCAL, True, False, 0))
    assert torch.equal(facts.synced[:, 0], torch.stack([SYNCED, 2 * SYNCED]))
    assert torch.equal(facts.local[:, 0], torch.stack([LOCAL, LOCAL]))
    assert facts.has_grad.tolist() == [[True], [True]]
    assert facts.has_local.tolist() == [[True], [False]]
    assert facts.shard.tolist() == [[1], [0]]
    assert facts.comparable().tolist() == [True]


@pytest.mark.parametrize(
    "row",
    [
        (SYNCED, LOCAL, False, True, 0),  # no .grad on this rank
        (SYNCED, LOCAL * torch.nan, True, True, 0),  # it may have been zeroed
        (SYNCED / 0, LOCAL, True, True, 0),
    ],
)
def test_a_gradient_that_one_rank_does_not_know_is_not_compared(row):
    """The other rank has everything."""
    facts = told((SYNCED, LOCAL, True, True, 0), row)
    assert facts.comparable().tolist() == [False]


def test_gradients_are_zeroed_only_if_all_that_were_made_are_gone():
    """A gradient that was 0 from the beginning tells nothing."""
    zero = torch.zeros(3)
    gone, kept = (zero, LOCAL, True, True, 0), (SYNCED, LOCAL, True, True, 0)
    never = zero, zero, True, True, 0
    assert told(gone, gone).zeroed()
    assert told(gone, (zero, LOCAL, False, True, 0), never).zeroed()
    assert not told(gone, kept).zeroed()
    assert not told(never, never).zeroed()


class Two(Exchange):
    """Two ranks that exchange nothing, for what is judged is known already."""

    def __init__(self):
        self.ranks, self.size = [0, 1], 2


def gradient(change, seed=0):
    """Return a gradient that two ranks share after ``change(mean, locals)``."""
    draw = torch.Generator().manual_seed(seed)
    local = torch.randn(2, 50, generator=draw)  # (W, n)
    synced = change(local.mean(0, keepdim=True), local).expand(2, -1)
    mean = sketch(local)[:, :2].mean(0, keepdim=True).expand(2, -1)
    return Gradient(
        f"w{seed}",
        synced=sketch(synced.contiguous())[:, :2],
        local=sketch(local)[:, :2],
        mean=mean,
        scale=torch.full((2, 1), 7.0),
    )


def verdict(change, **options):
    """Judge two gradients that were changed alike."""
    gradients = [gradient(change, seed) for seed in range(2)]
    rule = {"factor": 1.0, "scaled": False, "tolerance": 0.05, "hint": ""}
    return judge(Two(), "step 1", gradients, **rule | options)


def test_the_mean_is_right_and_a_clipped_mean_too():
    """The common factor is returned."""
    assert verdict(lambda mean, _: mean) == 1
    assert verdict(lambda mean, _: mean / 4) == pytest.approx(0.25)
    assert verdict(lambda mean, _: mean / 64, factor=1 / 64) == 1


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (lambda mean, _: 2 * mean, {}, "every gradient is 2 times.*It is their sum"),
        (lambda mean, _: 3 * mean, {}, "every gradient is 3 times.*or not zeroed"),
        (lambda mean, _: 3 * mean, {"hint": "Look."}, r"is 3 times.*gradients\. Look"),
        (lambda mean, _: mean / 3, {"scaled": True}, "Clipped while still scaled"),
        (lambda _, local: local, {}, "w0 .and 1 more.*ranks 0, 1 still hold their own"),
        (lambda _, local: local.flip(1), {}, "w0 .and 1 more.*a collective was paired"),
    ],
)
def test_another_number_has_its_cause_in_the_message(change, options, said):
    """One factor for all, or a gradient that is not the mean."""
    with pytest.raises(GuardError, match=f"(?s)step 1: .*{said}"):
        verdict(change, **options)
