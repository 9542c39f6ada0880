"""Which driver runs which wheel, and which GPUs a wheel's code serves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.doctor.wheels import arch_runs, driver_runs

VERSIONS = st.tuples(st.integers(390, 700), st.integers(0, 300), st.integers(0, 99))


@given(VERSIONS, VERSIONS, st.sampled_from([11, 12, 13]))
def test_a_newer_driver_runs_what_an_older_one_does(one, other, cuda):
    """A driver that runs a newer CUDA also runs an older one."""
    old, new = (".".join(map(str, v)) for v in sorted([one, other]))
    assert driver_runs(new, f"{cuda}.0") >= driver_runs(old, f"{cuda}.0")
    if cuda > 11 and driver_runs(old, f"{cuda}.4"):
        assert driver_runs(old, f"{cuda - 1}.8")


@pytest.mark.parametrize(
    ("driver", "cuda", "runs"),
    [
        ("580.65.06", "13.0", True),
        ("579.99", "13.0", False),
        ("525.60.13", "12.6", True),
        ("525.60.12", "12.0", False),
        ("450.80.02", "11.8", True),
        ("390.48", "11.8", False),
        ("999.1", "14.0", None),
    ],
)
def test_driver_limits(driver, cuda, runs):
    """The limits are those in NVIDIA's table of minor version compatibility."""
    assert driver_runs(driver, cuda) is runs


@given(st.integers(5, 12), st.integers(0, 9), st.integers(5, 12), st.integers(0, 9))
def test_code_runs_on_its_major_version_and_source_on_all_later(a, b, x, y):
    gpu = f"{x}.{y}"
    assert arch_runs(gpu, [f"sm_{a}{b}"]) == (a == x and b <= y)
    assert arch_runs(gpu, [f"sm_{a}{b}a"]) == ((a, b) == (x, y))
    assert arch_runs(gpu, [f"compute_{a}{b}"]) == ((a, b) <= (x, y))
    assert not arch_runs(gpu, [])
