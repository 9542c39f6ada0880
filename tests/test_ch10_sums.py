"""Sums in bf16 keep to the page's bounds, in any order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts import ch10_sums as script

numbers = st.floats(-(2.0**20), 2.0**20, width=32)


@given(st.lists(numbers, min_size=1, max_size=70), st.sampled_from(script.ORDERS))
def test_no_error_is_above_its_bound(terms, order):
    """For any numbers and any order, away from what is too small for bf16."""
    terms = torch.tensor(terms).bfloat16()[:, None]
    terms[terms.abs() < 1e-30] = 0
    if not terms.double().abs().sum():
        return
    bound = script.bound(order, len(terms))
    assert script.error(order, terms).item() <= bound * (1 + 1e-12)


@given(st.integers(1, 300))
def test_bounds_are_in_the_order_of_the_page(num):
    """Fewer additions on a term's way, a smaller bound."""
    turn, pairs, _ = (script.bound(order, num) for order in script.ORDERS)
    assert pairs <= turn
    assert turn == pytest.approx((1 + 2**-8) ** (num - 1) - 1)
    assert pairs == pytest.approx((1 + 2**-8) ** (num - 1).bit_length() - 1)


@given(st.integers(1, 200), st.integers(1, 3))
def test_all_orders_add_up_every_term_once(num, columns):
    """Whole numbers in float64 are exact in any order."""
    terms = torch.arange(float(num * columns), dtype=torch.double).view(num, columns)
    for order in script.in_turn, script.in_pairs:
        assert torch.equal(order(terms.clone()), terms.sum(dim=0))


@given(st.integers(1, 2000))
def test_ones_stop_at_256_in_turn_and_never_in_float32(num):
    ones = torch.ones(num, 1, dtype=torch.bfloat16)
    assert script.in_turn(ones).item() == min(num, 256)
    right = torch.tensor(float(num)).bfloat16().item()
    assert script.in_float32(ones).item() == right


def test_the_script_prints_errors_and_bounds(capsys, monkeypatch):
    flags = ["x", "--most-ranks", "64", "--columns", "8"]
    monkeypatch.setattr("sys.argv", flags)
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        f"64 ones, added {name}: 64" for name in ("in turn", "in pairs", "in float32")
    ]
    assert [line.split()[0] for line in lines[5:]] == ["4", "16", "64"]


def test_fewer_than_four_ranks_are_refused():
    with pytest.raises(SystemExit, match=r"^--most-ranks 3: must be 4 to 65536$"):
        script.parse_args(["--most-ranks", "3"])


def test_more_terms_than_fit_into_memory_are_refused():
    """Each flag is in its range, but together they would take 20 GB."""
    why = r"^--most-ranks 65536 x --columns 16384: must be 16777216 numbers at most"
    with pytest.raises(SystemExit, match=why):
        script.parse_args(["--most-ranks", "65536", "--columns", "16384"])
    assert script.parse_args(["--most-ranks", "65536", "--columns", "256"])


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 9), st.integers(1, 300))
def test_a_gradient_in_bf16_is_a_sum_in_turn_over_passes(seed, num):
    """What backward adds to .grad in k passes has the bits of this page's ring."""
    terms = script.make_terms(num, 5, 1.0, seed)
    weight = torch.zeros(5, dtype=torch.bfloat16, requires_grad=True)
    for term in terms:
        (weight * term).sum().backward()
    assert weight.grad.dtype == torch.bfloat16
    assert torch.equal(weight.grad, script.in_turn(terms))
