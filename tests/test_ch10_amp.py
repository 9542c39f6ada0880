"""Our loss scaler does what torch's does, and all ranks skip or none does."""

import functools
import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from allranks import Ranks, RanksError
from scripts import ch10_amp as script
from tests.ranks import run_script

RUN = """
from scripts.ch10_amp import Scaler

def play(kind, outcomes, start, interval):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.125)
    if kind == "ours":
        scaler = Scaler(start, interval)
    else:
        scaler = torch.amp.GradScaler(
            "cpu", init_scale=start, growth_interval=interval
        )
    seen = []
    for bad in outcomes:
        optimizer.zero_grad()
        factor = torch.tensor([1.0, float(bad) if bad else 1.0])
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append((scaler.get_scale(), *weight.tolist()))
    return seen

[play(kind, outcomes, start, interval) for kind in ("ours", "torchs")]
"""


@pytest.fixture(scope="module")
def one():
    """Yield one live rank."""
    with Ranks(1) as ranks:
        yield ranks


@settings(deadline=None, max_examples=30)
@given(
    outcomes=st.lists(st.sampled_from(["", "", "", "inf", "nan"]), max_size=20),
    start=st.sampled_from([1.0, 2.0**16, 2.0**126]),
    interval=st.integers(1, 4),
)
@example(outcomes=[""] * 3, start=2.0**126, interval=1)
def test_scales_and_steps_are_torchs_for_any_outcomes(one, outcomes, start, interval):
    """After each step both have the same scale, and the same weights."""
    one.push({"outcomes": outcomes, "start": start, "interval": interval})
    ((ours, theirs),) = one.run(RUN, quiet=True)
    assert ours == theirs


@pytest.mark.parametrize("odd", [0, 2])
def test_all_ranks_skip_if_one_overflows(odd):
    """Each owns a part; torch's scaler would let the others step."""
    source = """
from scripts.ch10_amp import Scaler

part = torch.nn.Parameter(torch.ones(1))
optimizer, scaler = torch.optim.SGD([part], 0.5), Scaler(8.0, 99)
seen = []
for step in range(3):
    part.grad = torch.full((1,), float("inf") if (rank, step) == (odd, 1) else 8.0)
    scaler.step(optimizer)
    scaler.update()
    seen.append((part.item(), scaler.get_scale()))
seen
"""
    with Ranks(3) as ranks:
        ranks.push({"odd": odd})
        found = ranks.run(source, quiet=True)
    assert found == [[(0.5, 8.0), (0.5, 4.0), (-0.5, 4.0)]] * 3


def test_a_parameter_without_a_gradient_is_passed_over():
    """A rank that has no gradient at all steps, and skips, with the others."""
    source = """
from scripts.ch10_amp import Scaler

used, unused = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
optimizer, scaler = torch.optim.SGD([unused, used], 0.5), Scaler(8.0, 99)
if rank == 0:
    used.grad = torch.full((1,), 8.0)
scaler.step(optimizer)
scaler.update()
if rank == 0:
    used.grad = torch.full((1,), float("inf"))
scaler.step(optimizer)
scaler.update()
used.item(), unused.item(), scaler.get_scale()
"""
    with Ranks(2) as ranks:
        found = ranks.run(source, quiet=True)
    assert found == [(0.5, 1.0, 4.0), (1.0, 1.0, 4.0)]


def test_shards_of_fsdp2_share_the_verdict():
    """An inf in one rank's shard makes all skip, since torch's scaler sees DTensors."""
    source = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

net = torch.nn.Linear(4, 4, bias=False)
fully_shard(net, mesh=init_device_mesh("cpu", (world_size,)))
optimizer = torch.optim.SGD(net.parameters(), 0.5)
scaler, seen = torch.amp.GradScaler("cpu", init_scale=8.0), []
for odd in None, 1:
    optimizer.zero_grad()
    scaler.scale(net(torch.ones(2, 4)).sum()).backward()
    if rank == odd:
        net.weight.grad.to_local()[0, 0] = float("inf")
    before = net.weight.to_local().clone()
    scaler.step(optimizer)
    scaler.update()
    seen.append((torch.equal(before, net.weight.to_local()), scaler.get_scale()))
seen
"""
    with Ranks(2) as ranks:
        assert ranks.run(source, quiet=True) == [[(False, 8.0), (True, 4.0)]] * 2


def test_a_loss_that_is_not_finite_ends_in_one_sentence():
    """No scale helps then, and it would be halved until it is 0."""
    flags = "--lr", "1000", "--steps", "300"
    with pytest.raises(RanksError) as end:
        run_script("ch10_amp", 2, *flags)
    why = r" step \d+: the loss is nan: start with a lower --lr$"
    assert re.search(why, str(end.value), re.M)
    assert "that is a bug" not in str(end.value)


def test_a_scale_of_0_ends_in_one_sentence():
    """At 2^-149 its reciprocal is inf, so it is halved at once, to 0."""
    source = """
from types import SimpleNamespace
from scripts.ch10_amp import train

args = SimpleNamespace(steps=9, power=-149, interval=20, seed=0, lr=0.01)
try:
    train(args, torch.device("cpu"), ours=True)
except SystemExit as error:
    told = str(error)
told
"""
    with Ranks(1) as ranks:
        (told,) = ranks.run(source, quiet=True)
    assert told == "step 2: the scale is 0: start with a lower --lr"


def test_a_scale_saves_what_fp16_would_lose():
    """Fewer numbers are lost at a larger scale, until it overflows."""
    torch.manual_seed(0)
    net, x = torch.nn.Linear(4, 3), torch.randn(2000, 4) * 9
    y = net(x).argmax(dim=1)
    lost, wrong = zip(
        *(script.survey(net, x, y, p) for p in (-8, 0, 16, 40)), strict=True
    )
    assert lost[0] > lost[1] > lost[2]
    assert wrong[2] < 2e-3 and not wrong[3] < 1e9  # inf or NaN


def test_the_script_compares_both_scalers():
    lines = run_script("ch10_amp", 2, "--steps", "8", "--interval", "3")[0]
    scales = "scales: 2^24 x 1, 2^23 x 1"
    assert lines[0].startswith(f"[rank 0/2] {scales}")
    assert len(lines) == 6 and all("became 0, error" in line for line in lines[1:])


def test_a_scale_too_large_for_a_float_is_refused():
    with pytest.raises(SystemExit, match=r"^--power 101: must be 1 to 100$"):
        script.parse_args(["--power", "101"])


def play(scaler, outcomes: list[str], passes: int = 1, early: bool = False) -> list:
    """Return scales and weights of torch's scaler over steps of some passes."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer, seen = torch.optim.SGD([weight], 0.125), []
    for outcome in outcomes:
        optimizer.zero_grad()
        for place in range(passes):
            factor = float(outcome) if outcome else 1.0
            scaler.scale((weight * factor).sum() / passes).backward()
            if early and place < passes - 1:
                scaler.unscale_(optimizer)
                scaler.update()
        scaler.step(optimizer)
        scaler.update()
        seen.append((scaler.get_scale(), weight.item()))
    return seen


def test_a_scaler_goes_on_only_from_its_state():
    """The page: save state_dict, or the scale and the good steps begin again."""
    how = {"init_scale": 8.0, "growth_interval": 3}
    make = functools.partial(torch.amp.GradScaler, "cpu", **how)
    first, whole = make(), make()
    scales = [scale for scale, _ in play(whole, ["inf", "inf", *[""] * 4])]
    play(first, ["inf", "inf", "", ""])
    resumed, forgot = make(), make()
    resumed.load_state_dict(first.state_dict())
    assert [scale for scale, _ in play(resumed, ["", ""])] == scales[4:]
    assert [scale for scale, _ in play(forgot, ["", ""])] != scales[4:]
    fresh = torch.amp.GradScaler("cpu")
    play(fresh, [""])
    assert fresh.get_scale() == 2.0**16


def test_one_update_for_all_passes_of_a_step():
    """With one, two passes are a batch; with one in between, they are not."""
    make = functools.partial(torch.amp.GradScaler, "cpu", 8.0, growth_interval=1)
    right = [weight for _, weight in play(make(), ["", ""])]
    assert [weight for _, weight in play(make(), ["", ""], passes=2)] == right
    assert [weight for _, weight in play(make(), ["", ""], 2, early=True)] != right


def test_a_skipped_step_shows_in_a_smaller_scale():
    """So that the scheduler can leave it out, as the page says."""
    seen = play(torch.amp.GradScaler("cpu", 8.0), ["", "inf", ""])
    assert [scale for scale, _ in seen] == [8.0, 4.0, 4.0]
    weights = [weight for _, weight in seen]
    assert weights[1] == weights[0] != weights[2]
