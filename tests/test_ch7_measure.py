"""The fit finds the lines that the times were made from, and bad times are refused."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks import RanksError
from allranks.base.paths import ROOT
from scripts import ch7_measure as script
from tests.ranks import run_script

N = 2.0 ** torch.arange(10, 26).double()


def times(cut, small, large):
    """Return what two lines say about all sizes."""
    return script.predict((cut, small, large), N)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(1e-6, 1e-3), st.floats(1e-11, 1e-8), st.floats(0, 1), st.integers(0, 99)
)
def test_the_fit_finds_alpha_and_beta(alpha, beta, more, seed):
    """Without noise exactly; with 2 % of it, held-out sizes are within 6 %."""
    cut = float(N[8])
    t = times(cut, (alpha, beta), (alpha * (1 + more), beta * (1 + more)))
    exact = script.fit(N[::2], t[::2])
    torch.testing.assert_close(
        script.predict(exact, N[1::2]), t[1::2], rtol=0.02, atol=0
    )
    noise = torch.randn(len(N), generator=torch.Generator().manual_seed(seed)).double()
    noisy = t * (1 + 0.02 * noise.clamp(-2, 2))
    found = script.predict(script.fit(N[::2], noisy[::2]), N[1::2])
    assert float((found / t[1::2] - 1).abs().median()) < 0.06


def test_no_line_falls_below_nothing():
    """Times that shrink with the size give a slope of 0, and no negative alpha."""
    _, *lines = script.fit(N, 1 / N)
    assert all(value >= 0 for line in lines for value in line)


def test_bus_bandwidth_is_nccl_tests(monkeypatch):
    """2 (W - 1) / W, (W - 1) / W or 1 times the bytes per second."""
    t = 1e-9 * N  # 1 GB/s
    for size in 2, 4, 64:
        monkeypatch.setattr(script.dist, "get_world_size", lambda size=size: size)
        factors = {"all_reduce": 2 * (size - 1) / size, "broadcast": 1.0}
        for name in script.CALLS:
            factor = factors.get(name, (size - 1) / size)
            line, error = script.describe(name, N, t)
            assert line.startswith(f"{name}: 0 us + 1000 us per MB below ")
            assert error.startswith("  wrong by 0%") and f"; bus {factor:.2f}" in error


def test_the_worst_prediction_has_its_size(monkeypatch):
    """One size took twice as long as the fit of its neighbors says."""
    monkeypatch.setattr(script.dist, "get_world_size", lambda: 2)
    t = 1e-9 * N
    t[5] *= 2
    assert "at worst -50% at 33 kB" in script.describe("broadcast", N, t)[1]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_ring_gives_its_alpha_and_b_back(monkeypatch, size):
    """Times of a ring's formula, whose second half is an all_gather."""
    monkeypatch.setattr(script.dist, "get_world_size", lambda: size)
    alpha, bandwidth = 50e-6, 2e9
    half = (size - 1) * (alpha + N / size / bandwidth)
    said, error = script.as_ring(N, 2 * half, half)
    assert said == "ring: alpha 50 us, B 2.00 GB/s"
    predicted, took = error.split("all_gather ")[1].split(" ms; it took ")
    assert f"{predicted} ms" == took


def test_a_launch_fits_all_or_says_why_not():
    """Whatever else runs here: it ends with five fits, or with one sentence."""
    flags = "--largest-kb", "2048", "--repeats", "3"
    try:
        lines = run_script("ch7_measure", 2, *flags)[0]
    except RanksError as error:
        assert " apart, load " in str(error)
    else:
        assert sum("; bus " in line for line in lines) == 5


@pytest.mark.parametrize("world_size, flag", [(1, "2048"), (2, "1024")])
def test_too_little_is_refused(world_size, flag):
    with pytest.raises(RanksError, match=": 2 and 12 are needed"):
        run_script("ch7_measure", world_size, "--largest-kb", flag)


def test_the_page_works_with_the_numbers_that_it_shows():
    """Its sums by hand, its worst size and its error are those of the record."""
    page = " ".join((ROOT / "book" / "ch7_collectives.md").read_text("utf8").split())
    name = (
        "torchrun-standalone-nproc-per-node-2-scripts-ch7_measure.py-most-spread-9999"
    )
    said = (ROOT / "book" / "_runs" / f"{name}.txt").read_text("utf8")
    first, slope = re.search(
        r"all_reduce: (\d+) us .* (\d+) us per MB$", said, re.M
    ).groups()
    assert (
        f"says {first} us, so $\\alpha$ is {first} / 2 = {int(first) / 2:.0f} µs"
        in page
    )
    b = f"1 MB / {slope} µs = {1000 / int(slope):.2f} GB/s"
    assert f"says {slope} us per MB, so $B$ is {b}" in page
    assert f'"{re.search("ring: .*", said)[0]}"' in page
    guess, took = re.search(
        r"all_gather ([\d.]+) ms; it took ([\d.]+) ms", said
    ).groups()
    assert f"predicted {guess} ms, and the all_gather took {took} ms" in page
    assert float(guess) / float(took) == pytest.approx(0.75, abs=0.05)  # a quarter
    worst = re.search(r"at worst \S+ at (\d+) kB", said)[1]
    assert f"Here it is {worst} kB, which took longer than 32 kB" in page
    ms = {kb: float(t) for kb, t in re.findall(r"(\d+) kB +([\d.]+) ms", said)}
    assert ms[worst] > ms["32"]
