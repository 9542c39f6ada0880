"""Small steps are lost in bf16; a copy, a rest or random rounding keeps them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks import Ranks, RanksError
from scripts import ch10_precision as script
from tests.ranks import run_script

import tasks

numbers = st.floats(-(2.0**100), 2.0**100, width=32).filter(lambda x: abs(x) > 1e-30)
TRAIN = """
from types import SimpleNamespace

from scripts import ch10_precision as script

args = SimpleNamespace(steps=6, batch_size=8 // world_size, lr=3e-4, seed=3)
found = {}
for way in ways:
    losses, still, net = script.train(args, way, torch.device("cpu"))
    flat = torch.cat([p.detach().float().flatten() for p in net.parameters()])
    low, high = flat.clone(), flat.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    found[way] = losses, still, flat, torch.equal(low, high)
found
"""


def spacing(x: torch.Tensor) -> torch.Tensor:
    """Return the distance from each number to the next larger of bf16."""
    _, exponent = torch.frexp(x.float())  # x is 1 to 2, times 2 ** (exponent - 1)
    return torch.ldexp(torch.ones_like(x, dtype=torch.float32), exponent - 8)


@given(numbers)
def test_spacing_is_the_distance_to_the_next_bf16_number(x):
    """The page's formula holds for every number that bf16 has, away from zero."""
    x = torch.tensor(x).bfloat16()
    after = torch.nextafter(x, x.sign() * torch.inf)
    assert spacing(x).item() == (after.double() - x.double()).abs().item()


@given(numbers, st.integers(0, 9))
def test_rounding_at_random_gives_a_neighbor(x, seed):
    """It is the nearest number below or above, and exact where bf16 has the number."""
    x = torch.tensor([x] * 64)
    draw = torch.Generator().manual_seed(seed)
    found = script.at_random(x, draw).double()
    assert ((found - x.double()).abs() < spacing(x)).all()
    exact = x.bfloat16().float()
    assert torch.equal(script.at_random(exact, draw).float(), exact)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("weight", [1.0, -0.3125, 96.0])
def test_its_mean_is_the_number(weight, share):
    """Within four standard deviations of a mean of 20,000 draws."""
    gap = spacing(torch.tensor(weight)).item()
    x = torch.full((20_000,), weight + share * gap)
    found = script.at_random(x, torch.Generator().manual_seed(0)).double()
    spread = gap * (share * (1 - share) / len(x)) ** 0.5
    assert found.mean().item() == pytest.approx(x[0].item(), abs=4 * spread)


@given(st.floats(0.015625, 128, width=32), st.floats(-0.9, 0.9))
def test_a_step_is_lost_below_half_of_the_spacing_and_kept_by_a_copy(weight, share):
    """``keep`` says so, and the optimizer's own weight is right with a copy only."""
    weight = torch.tensor([weight]).bfloat16()
    if torch.frexp(weight.float())[0] == 0.5:
        return  # at a power of two the lower neighbor is nearer
    step = share * spacing(weight).float()
    if abs(abs(share) - 0.5) < 1e-3 or abs(share) < 1e-3:
        return
    same = weight.float()  # a step of zero is not lost
    assert not script.keep("bf16", weight.clone(), same, same.clone(), None).item()
    lost = {"bf16": abs(share) < 0.5, "bf16 + master": False, "bf16 + Kahan": False}
    for way, is_lost in lost.items():
        stored, exact = weight.clone(), weight.float() + step
        wanted = exact.clone()
        assert script.keep(way, stored, same, exact, None).item() == is_lost
        assert torch.equal(stored, wanted.bfloat16())
        rest = (wanted - stored).bfloat16()  # of eight bits, below the weight's eight
        kept = {"bf16 + master": wanted, "bf16 + Kahan": stored + rest.float()}
        assert torch.equal(exact, kept.get(way, stored.float()))


@settings(deadline=None, max_examples=20)
@given(st.floats(0.25, 100, width=32), st.integers(3, 200))
def test_kahan_adds_up_small_steps_with_two_bytes_more(weight, parts):
    """As many steps as make one spacing move the weight by one, and bf16 by none."""
    weight = torch.tensor([weight]).bfloat16()
    if torch.frexp(weight.float())[0] > 0.99:
        return  # beyond the next power of two the spacing is another
    gap = spacing(weight)
    for way, moved in ("bf16", 0), ("bf16 + Kahan", 1):
        stored, exact = weight.clone(), weight.float()
        for _ in range(parts):
            before = exact.clone()
            exact += gap / parts
            script.keep(way, stored, before, exact, None)
        assert torch.equal(stored.float(), weight.float() + moved * gap)


@pytest.fixture(scope="module")
def trained():
    """Return what one rank and two ranks found, by the number of ranks."""
    found = {}
    for num in 1, 2:
        with Ranks(num) as ranks:
            ranks.push({"ways": script.WAYS})
            found[num] = ranks.run(TRAIN, quiet=True)
    return found


def test_two_ranks_train_as_one_does_on_their_union(trained):
    """In float32 up to rounding, because Adam's first steps are signs."""
    (one,), (two, _) = trained[1], trained[2]
    torch.testing.assert_close(
        torch.tensor(two["fp32"][0]), torch.tensor(one["fp32"][0])
    )


@pytest.mark.parametrize("way", script.WAYS)
def test_replicas_stay_equal_in_all_ways(way, trained):
    """Also when rounded at random: all ranks draw the same."""
    assert all(found[way][3] for found in trained[2])


def test_gradients_are_averaged_over_ranks_in_float32():
    """AdamW would hide a sum in place of a mean, because it divides by the size."""
    source = """
from scripts import ch10_precision as script

parts = [torch.full((2, 3), 1.0 + rank).bfloat16(), torch.ones(1) * rank]
[(m.tolist(), m.dtype) for m in script.average(parts)]
"""
    mean = [[2.0] * 3] * 2, [1.0]
    with Ranks(3) as ranks:
        for found in ranks.run(source, quiet=True):
            assert found == [(m, torch.float32) for m in mean]


def test_what_is_lost_is_what_bf16_loses(trained):
    """Most steps are lost in bf16 alone, where weights stay behind those of fp32."""
    (found,) = trained[1]
    still = {way: values[1] for way, values in found.items()}
    assert still["fp32"] < 0.01 and still["bf16 + master"] == 0
    assert still["bf16 + Kahan"] < 0.05
    assert still["bf16"] > 0.3 and still["bf16, stochastic"] > 0.3
    distance = {w: (v[2] - found["fp32"][2]).norm().item() for w, v in found.items()}
    assert distance["bf16 + master"] < distance["bf16"]
    assert distance["bf16 + Kahan"] < distance["bf16"]


def test_the_script_prints_a_line_for_each_way():
    lines = run_script("ch10_precision", 2, "--steps", "2", "--batch-size", "2")[0]
    assert len(lines) == len(script.WAYS)
    for way, line in zip(script.WAYS, lines, strict=True):
        assert line.startswith(f"[rank 0/2] {way} ") and "of the weights stand" in line


def test_a_loss_that_is_no_number_ends_in_a_sentence():
    args = ["--steps", "2", "--batch-size", "1", "--lr", "1e30"]
    why = "after --steps 2, fp32: the loss is nan: start with a lower --lr"
    with pytest.raises(RanksError, match=why):
        run_script("ch10_precision", 1, *args)


def test_the_text_must_be_beside_the_script(monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "__file__", str(tmp_path / "tasks.py"))
    with pytest.raises(
        SystemExit, match=r"frankenstein\.txt: No such file.*put the bo"
    ):
        script.read_text()


def test_torch_shortens_to_tf32_and_splits_sums_as_the_page_says():
    """Products in float32 are whole unless asked; sums in bf16 may be split."""
    source = """
(
    torch.get_float32_matmul_precision(),
    torch.backends.cudnn.allow_tf32,
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
)
"""
    with Ranks(1) as ranks:  # a fresh process: other tests may have changed ours
        assert ranks.run(source, quiet=True) == [("highest", True, True)]


@pytest.mark.parametrize("beta, falls", [(0.999, False), (0.95, True)])
def test_a_mean_of_squares_in_bf16_falls_with_a_smaller_beta(beta, falls):
    square = torch.ones(1, dtype=torch.bfloat16)
    for _ in range(1000):
        square *= beta
    assert (square.item() < 1e-9) == falls
    assert falls or square.item() == 1
