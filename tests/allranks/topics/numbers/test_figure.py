"""What the chapter says of the formats holds, and torch is asked for the same."""

import pytest
import torch

from allranks.topics import Numbers
from allranks.topics.numbers.runs import DTYPES
from allranks.topics.numbers.sums import FORMATS


def test_what_is_added_to_one_is_lost_in_all_formats_but_float32():
    facts = Numbers().facts
    lost = [key for key, one in facts["formats"].items() if one["lost"]]
    assert lost == [key for key in FORMATS if key != "fp32"]
    assert "gives 1, as before." in facts["summary"]


def test_what_does_not_fit_is_named_and_not_said_to_be_lost():
    """65504 is fp16's largest number, and e4m3, without an infinity, ends at 448."""
    facts = Numbers(number="70000").facts
    fits = [key for key, one in facts["formats"].items() if one["fits"]]
    assert fits == ["fp32", "tf32", "bf16"]
    said = "in fp32, tf32, bf16. 70000 does not fit in fp16, fp8 e5m2, fp8 e4m3."
    assert facts["summary"].endswith(said)
    tiny = Numbers(number="1e-30").facts["formats"]
    assert tiny["bf16"]["fits"] and not tiny["fp16"]["fits"]
    assert all(one["fits"] for one in Numbers(number="0").facts["formats"].values())


@pytest.mark.parametrize("key", ["bf16", "fp16"])
@pytest.mark.parametrize("number", [1.0, 0.1, 180.0, 65504.0, -2.5])
def test_the_gap_is_the_way_to_torchs_next_number(key, number):
    """Upwards, and downwards from the largest number."""
    here = torch.tensor(number, dtype=DTYPES[key][0])
    far = torch.tensor(float("inf"), dtype=here.dtype)
    beside = torch.nextafter(here, far)
    if beside.isinf():
        beside = torch.nextafter(here, -far)
    gap = Numbers(number=str(number)).facts["formats"][key]["gap"]
    assert float(gap) == pytest.approx(abs(beside - here).item(), rel=5e-3)


def test_nothing_is_lost_if_nothing_is_added():
    assert not any(one["lost"] for one in Numbers(add="0").facts["formats"].values())
    minus = Numbers(number="-256", add="-1", form="bf16").facts
    assert minus["formats"]["bf16"]["lost"] and not minus["formats"]["fp16"]["lost"]


@pytest.mark.parametrize("key", DTYPES)
def test_the_ends_are_torchs(key):
    one, info = Numbers().facts["formats"][key], torch.finfo(DTYPES[key][0])
    assert float(one["most"]) == pytest.approx(info.max, rel=1e-8)
    assert float(one["normal"]) == pytest.approx(info.smallest_normal, rel=1e-8)


@pytest.mark.parametrize(
    ("number", "form", "said"),
    [
        ("65520", "fp16", "is inf: the largest number is 65504."),
        ("65519", "fp16", "is 65504, the largest number there is."),
        ("-1e9", "e4m3", "is -448, the largest number there is."),
        ("2^-26", "fp16", "is 0: too small, and rounded to zero."),
        ("1e-7", "fp16", "a subnormal number of fewer bits."),
        ("0", "bf16", "0 in bf16 is 0. Its neighbors are -9.18354962e-41 and"),
        ("448", "e4m3", "is 448. Its neighbor is 416."),
    ],
)
def test_the_sentence_names_what_happened(number, form, said):
    assert said in Numbers(number=number, form=form).facts["summary"]


@pytest.mark.parametrize("number", ["1", "0.1", "-3e4", "464", "1e9", "2^-25", "1e-40"])
@pytest.mark.parametrize("add", ["1e-4", "-1e39", "0.003"])
def test_torch_says_the_same(number, add):
    found = Numbers(number=number, add=add).measure()
    assert found["equal"], found["summary"]
    assert found["summary"].startswith("torch has the same bits and sums in fp32, bf16")


def test_torch_rounds_twice_where_one_rounding_differs():
    """A hair above the tie of bfloat16 is the tie in float32, and goes to the even."""
    x = Numbers(number="1.00390625000001", add="0")
    assert x.facts["formats"]["bf16"]["value"] == "1.0078125"
    found = x.measure()
    assert not found["equal"] and "torch rounds to float32 before." in found["summary"]
