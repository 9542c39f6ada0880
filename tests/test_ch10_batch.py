"""The noise scale is that of single samples, and the search trains what it says."""

import re
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import grad, vmap

from allranks import Ranks, RanksError
from scripts import ch10_batch as script
from tests.ranks import run_on, run_script

positive = st.floats(0.01, 100)
LATE = """
from scripts import ch10_batch as script

data = script.read_digits(1440, torch.device("cpu"))
draw = torch.Generator().manual_seed(seed + rank)
[x.item() for x in script.measure_noise(weights, data, 8, 200, draw)]
"""
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pair():
    """Yield two live ranks."""
    with Ranks(2) as ranks:
        yield ranks


@given(positive, positive, st.integers(1, 64), st.integers(2, 16))
def test_two_equations_are_solved_for_two_unknowns(noise, signal, size, num):
    """From the squares that this noise and signal give, both come back."""
    local, mean = (signal + noise / batch for batch in (size, num * size))
    found = script.noise_scale(local, mean, size, num)
    assert found == pytest.approx((noise, signal), rel=1e-6)


def exact_noise(weights, data) -> tuple[float, float]:
    """Return tr(S) and |G|^2 from the gradients of all single samples."""

    def loss(weights, x, y):
        return script.losses(weights, x[None], y[None]).sum()

    slopes = vmap(grad(loss), (None, 0, 0))(weights, *data)  # each (N, 1, ...)
    rows = torch.cat([g.flatten(1) for g in slopes], dim=1).double()  # (N, n)
    mean = rows.mean(dim=0)
    return (rows - mean).square().sum(dim=1).mean().item(), mean.square().sum().item()


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_measure_the_noise_of_single_samples(world_size):
    """Within a tenth, over 600 rounds of batches of 16."""
    source = """
from scripts import ch10_batch as script

data = script.read_digits(200, torch.device("cpu"))
weights = script.make_nets(1, 0, torch.device("cpu"))
draw = torch.Generator().manual_seed(rank)
[x.item() for x in script.measure_noise(weights, data, 16, 600, draw)]
"""
    with Ranks(world_size) as ranks:
        found = ranks.run(source, quiet=True)
    assert found == [found[0]] * world_size
    data = script.read_digits(200, CPU)
    noise, signal, off = found[0]
    right = exact_noise(script.make_nets(1, 0, CPU), data)
    assert (noise, signal) == pytest.approx(right, rel=0.1)
    assert abs(signal - right[1]) < 1.5 * off < 0.2 * signal


def test_a_late_gradient_is_too_short_for_two_ranks(pair):
    """G itself says thousands; of |G|^2 2 x 8 samples tell no lower bound, mostly."""
    data, unknown = script.read_digits(1440, CPU), 0
    for seed in range(5):
        weights = script.make_nets(1, seed, CPU)
        for _ in range(100):
            for w, g in zip(weights, script.slopes(weights, data), strict=True):
                w -= 0.5 * g
        pair.push({"weights": weights, "seed": seed})
        _, signal, off = pair.run(LATE, quiet=True)[0]
        unknown += signal < off
        noise, exact = exact_noise(weights, data)
        assert noise / exact > 2000
    assert unknown >= 3


def test_without_noise_a_rate_of_two_is_too_bold():
    """The page says so of five seeds: 1 arrives within 200 steps, 2 in none of 400."""
    data, rates = script.read_digits(1440, CPU), torch.tensor([1.0, 2.0])
    for seed in range(5):
        weights, arrived = script.make_nets(2, seed, CPU), torch.zeros(2)
        for step in range(1, 401):
            for w, slope in zip(weights, script.slopes(weights, data), strict=True):
                w -= rates[:, None, None] * slope
            if step % 10 == 0:
                below = script.losses(weights, *data) < 0.1
                arrived[below & (arrived == 0)] = step
        assert 0 < arrived[0] <= 200 and arrived[1] == 0, (seed, arrived)


def test_nets_side_by_side_are_single_nets():
    """Each of the nine has the loss and the gradient of a net of its own."""
    data = script.read_digits(30, CPU)
    weights = script.make_nets(3, 1, CPU)
    for k, w in enumerate(weights):
        w *= 1 + k * torch.arange(3.0).view(3, 1, 1)
    whole, slopes = script.losses(weights, *data), script.slopes(weights, data)
    for net in range(3):
        (a, b) = (w[net].clone().requires_grad_() for w in weights)
        hidden = (data[0] @ a[:-1] + a[-1]).relu()
        loss = torch.nn.functional.cross_entropy(hidden @ b[:-1] + b[-1], data[1])
        torch.testing.assert_close(whole[net], loss)
        for slope, right in zip(slopes, torch.autograd.grad(loss, (a, b)), strict=True):
            torch.testing.assert_close(slope[net], right)


@pytest.mark.parametrize("kind, optimizer", [("SGD", "SGD"), ("Adam", "Adam")])
def test_it_trains_as_torchs_optimizers_do(kind, optimizer, monkeypatch):
    """With each of the nine rates, it needs as many steps as torch's to the goal."""
    args = SimpleNamespace(steps=40, seed=0, warmup=5, goal=1.2)
    data = script.read_digits(64, CPU)
    found = script.train(args, data, kind, 16)
    seen = []
    for place, reached in enumerate(found.tolist()):
        nets = [w.requires_grad_() for w in script.make_nets(1, 0, CPU)]
        rate, draw = (
            2.0 ** (script.FIRST[kind] + place),
            torch.Generator().manual_seed(1),
        )
        how = {"betas": (0.9, 0.99)} if kind == "Adam" else {}
        torchs = getattr(torch.optim, optimizer)(nets, rate, **how)
        for step in range(1, args.steps + 1):
            for w, g in zip(nets, script.slopes(nets, data, 16, draw), strict=True):
                w.grad = g
            torchs.param_groups[0]["lr"] = rate * min(1, step / args.warmup)
            torchs.step()
            if script.losses(nets, *data) < args.goal:
                break
        else:
            step = torch.inf
        seen.append(step)
        assert reached in (step, torch.inf), place
    assert min(seen) == found.min().item() < args.steps
    assert (found == torch.tensor(seen))[torch.tensor(seen) <= 2 * min(seen)].all()


@pytest.fixture(scope="module")
def said(pair) -> list[str]:
    """Return what a short run of the script prints."""
    flags = "--samples", "64", "--steps", "30", "--goal", "1.5"
    return run_on(pair, "ch10_batch", *flags)[0]


def test_the_script_tries_both_rules_at_four_batches(said):
    lines = [line.split("] ")[1] for line in said]
    assert [line.split(":")[0] for line in lines[4:]] == [
        f"{kind} {batch}" for kind in ("SGD", "Adam") for batch in script.BATCHES
    ]
    for line in lines[4:]:
        assert [part.split()[0] for part in line.split(": ")[1].split(", ")] == [
            *("best", "linear", "root"),
        ]


def test_a_rate_above_the_nine_was_not_tried(said):
    """SGD's nine end at 8 and Adam's at 0.5; inf is for rates that were tried."""
    found = re.findall(r"(SGD|Adam) \d+: (.+)", "\n".join(said))
    for kind, text in found:
        for rate, needs in re.findall(r"(\S+) \(([^)]+)\)", text):
            most = 2.0 ** (script.FIRST[kind] + 8)
            assert (float(rate) > most) == (needs == "not tried"), (kind, text)
    assert "not tried" in str(found)


def test_a_goal_that_no_rate_reaches_is_not_a_best_rate(pair):
    """Neither is a noise scale ever printed that is negative, as seed 1's was."""
    flags = "--samples", "64", "--steps", "2", "--goal", "1e-30", "--seed", "1"
    noise, search = [], []
    for line in run_on(pair, "ch10_batch", *flags)[0]:
        (noise if "noise scale" in line else search).append(line.split(": ", 1)[1])
    assert len(noise) == 4 and len(search) == 8
    bounds = [
        re.search(r"scale (\d+) to (\d+|inf), by G itself \d+$", x) for x in noise
    ]
    assert all(bounds) and bounds[-1][2] == "inf"
    assert all(line == "no best" for line in search)


def test_one_rank_has_nothing_to_compare():
    why = "1 rank: comparing its gradient with the mean needs 2"
    with pytest.raises(RanksError, match=why):
        run_script("ch10_batch", 1)
