"""What the formula says is what torch's tracker counts, to the byte of each kind."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts import ch11_memory as script

SIZES = ["", "--width 64 --layers 2 --words 512", "--width 96 --layers 5 --tokens 32"]
IN_STEP = "--width 256 --tokens 16 --batch-size 4"


def count(flags: str):
    """Return the prediction, and what torch counts in a second step."""
    args = script.parse_args(flags.split())
    made = script.make(args)
    script.step(*made, lambda _: None)
    return script.predict(args), script.track(*made)


@pytest.mark.parametrize("flags", [*SIZES, IN_STEP])
def test_each_kind_is_as_predicted(flags):
    """To the byte; torch counts the loss, too, which nothing keeps for backward."""
    wanted, found = count(flags)
    loss, step = found["loss"], found["step"]
    assert loss["Parameter"] == step["Parameter"] == wanted["weights"]
    assert step["Gradient"] == wanted["gradients"] and not loss["Gradient"]
    assert loss["Optstate"] == step["Optstate"] == wanted["optimizer"]
    assert loss["Activation"] + loss["Other"] == wanted["activations"] + 4
    assert found["peak"]["Total"] == wanted["peak"] + 4
    assert bool(found["peak"]["Gradient"]) == (flags == IN_STEP)
    assert not found["zero_grad"]["Gradient"]


@settings(deadline=None, max_examples=12)
@given(st.integers(1, 12), st.integers(1, 3), st.integers(1, 40), st.integers(1, 5))
def test_the_peak_is_where_the_formula_says(quarter, layers, tokens, batch):
    """At the ends of backward, if there are four times as many words as numbers."""
    dim = 4 * quarter
    flags = f"--width {dim} --layers {layers} --tokens {tokens} --batch-size {batch}"
    wanted, found = count(f"{flags} --words {max(256, 4 * dim)}")
    assert found["peak"]["Total"] == wanted["peak"] + 4


def test_sixteen_bytes_per_parameter():
    """Four each for weight and gradient, eight for Adam's means; counters are few."""
    wanted = script.predict(script.parse_args([]))
    fixed = sum(wanted[kind] for kind in ("weights", "gradients", "optimizer"))
    net = script.make(script.parse_args([]))[0]
    numbers = sum(p.numel() for p in net.parameters())
    assert fixed == 16 * numbers + 4 * len([*net.parameters()])


def test_the_first_step_has_no_state_before_its_end():
    """So a run can be out of memory at its second step."""
    made = script.make(script.parse_args([]))
    found = script.track(*made)
    assert not found["loss"]["Optstate"] and found["step"]["Optstate"]


def test_the_script_compares_five_rows(capsys):
    script.main(script.parse_args(["--width", "64", "--layers", "1"]))
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["bytes", "formula", "torch", "difference"]
    gaps = [int(row.split()[3]) for row in rows]
    assert gaps == [0, 0, 0, 4, 4]
    shares = [int(share) for share in re.findall(r"(\d+)%", last)]
    assert last.startswith("the peak is in backward: ")
    assert sum(shares) == pytest.approx(100, abs=3)


@pytest.mark.parametrize(
    "flags, why",
    [
        ("--width 130", "--width 130: must be a multiple of 4"),
        ("--words 255", "--words 255: must be 256 to 65536, for bytes"),
        ("--layers 0", "--layers 0: must be 1 to 65536"),
        ("--batch-size 9000", "a step of 29 GB: must be 4; lower a flag"),
    ],
)
def test_wrong_flags_are_refused_in_a_sentence(flags, why):
    with pytest.raises(SystemExit, match=f"^{re.escape(why)}$"):
        script.parse_args(flags.split())


def test_the_windows_are_of_the_text_and_the_same_each_time():
    """So that two runs with one change can be compared."""
    one, other = (script.make(script.parse_args([])) for _ in range(2))
    assert torch.equal(one[2], other[2]) and one[2].shape == (8, 64)
    assert torch.equal(one[2][:, 1:], one[3][:, :-1])
    assert torch.equal(one[0].head.weight, other[0].head.weight)
