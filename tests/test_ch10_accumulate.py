"""k parts on W ranks give the gradient of one large batch, or the page says why not."""

import pytest

from allranks import Ranks, RanksError
from scripts import ch10_accumulate as script
from tests import shown
from tests.ranks import run_script

RUN = """
from torch import nn

from scripts import ch10_accumulate as script

data, found = script.make_texts(samples, seed=5), {}
for name in middles:
    middle = getattr(nn, name) if name != "Dropout" else lambda _: nn.Dropout(0.1)
    for loss in losses:
        loss_of = getattr(script, loss)
        whole = script.at_once(script.make_around(middle), data, loss_of)
        net = script.make_around(middle)
        row, count = script.in_parts(net, data, loss_of, parts, no_sync)
        found[name, loss] = script.off(row, whole), count
found
"""


def run(ranks, parts, middles=("Identity",), losses=("each",), no_sync=True):
    """Return each rank's errors and reductions, by layer and loss."""
    samples = 8 * ranks.world_size * parts
    names = {"middles": middles, "losses": losses, "no_sync": no_sync}
    ranks.push({"samples": samples, "parts": parts, **names})
    return ranks.run(RUN, quiet=True)


@pytest.fixture(scope="module", params=[1, 2, 3], ids="W={}".format)
def ranks(request):
    """Yield live ranks."""
    with Ranks(request.param) as ranks:
        yield ranks


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_are_the_batch_where_each_sample_counts_alone(ranks, parts):
    """With layer norm too, and with tokens that are all counted first."""
    for found in run(ranks, parts, ("Identity", "LayerNorm"), ("each", "by_tokens")):
        assert len(found) == 4
        for wrong, count in found.values():
            assert wrong < 1e-14 and count == 1


def test_they_are_not_where_samples_look_at_others_or_count_unequally(ranks):
    """Batch norm, dropout, a mean of means, and a mean that is not divided."""
    (found, *_) = run(ranks, 4, ("BatchNorm1d", "Dropout"))
    assert found["BatchNorm1d", "each"][0] > 0.03
    masks = found["Dropout", "each"][0]  # parts of one rank draw as the batch does
    assert masks > 0.03 if ranks.world_size > 1 else masks < 1e-14
    (found, *_) = run(ranks, 4, losses=("mean_of_means", "forgotten"))
    assert found["Identity", "mean_of_means"][0] > 0.01
    assert found["Identity", "forgotten"][0] == pytest.approx(3)


def test_without_no_sync_the_gradient_is_the_same_and_is_reduced_k_times(ranks):
    for found in run(ranks, 4, no_sync=False):
        assert found["Identity", "each"] == (pytest.approx(0, abs=1e-14), 4)


def test_the_script_prints_a_line_for_each_try():
    lines = [line.split("] ")[1] for line in shown.lines("ch10_accumulate", 2)]
    right = [line for line in lines if "e-16 off" in line]
    assert [line[:13].strip() for line in right] == [
        *("plain", "layer norm", "group norm", "batch norm, f"),
        *("tokens, all c", "tokens, witho"),
    ]
    assert [line.split()[-2] for line in lines] == ["1"] * 9 + ["4"]


@pytest.mark.parametrize("samples", ["62", "8"])
def test_samples_must_fill_all_parts_of_all_ranks(samples):
    why = "must be a multiple of 8, ranks x --parts, and at least twice as many"
    with pytest.raises(RanksError, match=f"--samples {samples}: {why}"):
        run_script("ch10_accumulate", 2, "--samples", samples)
    assert script.parse_args([]).samples == 64
