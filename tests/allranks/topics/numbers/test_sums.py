"""The formats' arithmetic is torch's, bit for bit, and rounds to the nearest."""

import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from allranks.topics.numbers import sums
from allranks.topics.numbers.runs import DTYPES
from allranks.topics.numbers.sums import (
    FORMATS,
    add,
    decimal,
    decode,
    encode,
    neighbors,
)

KEYS = st.sampled_from(list(FORMATS))
SMALL = {key: form for key, form in FORMATS.items() if form.sign <= 1 << 15}
# Numbers of float32 by their bits, so that subnormals, large ones and ties are as
# likely as any, and those whose last bits are zero, so that other formats hold them.
ROUND = st.builds(
    lambda bits, zeros: bits >> zeros << zeros,
    st.integers(0, 2**32 - 1),
    st.integers(0, 22),
)
NEAR_ONE = st.builds(
    lambda sign, exponent, mantissa, zeros: (
        sign << 31 | exponent << 23 | mantissa >> zeros << zeros
    ),
    st.integers(0, 1),
    st.integers(127 - 26, 127 + 18),
    st.integers(0, 2**23 - 1),
    st.integers(0, 22),
)
FLOATS = (ROUND | NEAR_ONE).map(lambda bits: struct.unpack("f", struct.pack("I", bits)))
FLOATS = FLOATS.map(lambda one: one[0]).filter(lambda x: abs(x) < float("inf"))


def sized(x: float) -> tuple[Fraction, bool]:
    """Return a float's size, and whether it has a minus, which zero may have too."""
    return Fraction(abs(x)), str(x)[0] == "-"


def torchs(x: torch.Tensor, key: str) -> int:
    """Return the bits of a tensor's only number."""
    return x.view(DTYPES[key][1]).item() % (2 * FORMATS[key].sign)


@pytest.mark.parametrize("key", DTYPES)
@settings(max_examples=400, deadline=None)
@given(x=FLOATS)
@example(x=464.0)
@example(x=65519.996)
@example(x=65520.0)
@example(x=-0.0)
@example(x=2.0**-25)
@example(x=61440.0)
def test_every_float32_becomes_what_torch_makes_of_it(key, x):
    form, (dtype, _) = FORMATS[key], DTYPES[key]
    got = encode(form, *sized(x))
    assert got == torchs(torch.tensor([x]).to(dtype), key)
    value = decode(form, got)
    assert value is None or float(value) == torch.tensor([x]).to(dtype).double().item()


@settings(max_examples=400, deadline=None)
@given(x=FLOATS)
def test_tf32_is_float32_with_13_bits_rounded_off_to_the_even(x):
    """The last of the 10 bits is added to half a gap less one, as hardware rounds."""
    bits = struct.unpack("I", struct.pack("f", x))[0]
    want = (bits + 0xFFF + (bits >> 13 & 1)) >> 13
    assert encode(FORMATS["tf32"], *sized(x)) == want


@pytest.mark.parametrize("key", ["fp32", "bf16", "fp16"])
@settings(max_examples=400, deadline=None)
@given(a=FLOATS, b=FLOATS)
@example(a=1.0, b=1e-4)
@example(a=256.0, b=1.0)
@example(a=60000.0, b=60000.0)
@example(a=-0.0, b=-0.0)
@example(a=1.0, b=-1.0)
@example(a=3e38, b=-3e38)
def test_sums_are_torchs(key, a, b):
    form, (dtype, _) = FORMATS[key], DTYPES[key]
    pair = [torch.tensor([x]).to(dtype) for x in (a, b)]
    total = add(form, *(encode(form, *sized(x)) for x in (a, b)))
    real = pair[0] + pair[1]
    if real.isnan():
        assert sums.kind(form, total) == "NaN"
    else:
        assert total == torchs(real, key)


@pytest.mark.parametrize("key", ["e5m2", "e4m3"])
@pytest.mark.parametrize("step", [1, 7])
def test_sums_of_all_fp8_numbers_are_those_of_float32_rounded(key, step):
    """Of all 65,536 pairs, those that are a step apart are tried."""
    form, (dtype, _) = FORMATS[key], DTYPES[key]
    codes = torch.arange(256, dtype=torch.uint8)
    for shift in range(0, 256, 16 * step):
        other = codes.roll(shift + step)
        exact = codes.view(dtype).float() + other.view(dtype).float()
        want = exact.to(dtype).view(torch.uint8).tolist()
        for a, b, real, code in zip(
            codes.tolist(), other.tolist(), exact.tolist(), want, strict=True
        ):
            got = add(form, a, b)
            if real != real:
                assert sums.kind(form, got) == "NaN", (a, b)
            else:
                assert got == code, (a, b)


@pytest.mark.parametrize("key", SMALL)
def test_each_code_is_its_own_number_and_has_its_neighbors(key):
    """All codes of the formats of one and two bytes are read back, in order."""
    form = FORMATS[key]
    last = None
    for code in range(0, form.top + 1, 1 if form.sign < 1000 else 7):
        value = decode(form, code)
        for minus in False, True:
            assert encode(form, value, minus) == code + form.sign * minus
        below, above = neighbors(form, code)
        assert decode(form, below) < value
        assert above is None or value < decode(form, above)
        mirrored = neighbors(form, code + form.sign)
        assert mirrored[0] is None or decode(form, mirrored[0]) < -value
        assert -value < decode(form, mirrored[1])
        assert last is None or last < value
        last = value


@settings(max_examples=400, deadline=None)
@given(key=KEYS, x=st.fractions(-70_000, 70_000))
def test_no_number_of_the_format_is_nearer(key, x):
    form = FORMATS[key]
    code = encode(form, abs(x), x < 0)
    value = decode(form, code)
    if value is None:
        assert abs(x) > decode(form, form.top)
        return
    for other in neighbors(form, code):
        if other is not None:
            assert abs(value - x) <= abs(decode(form, other) - x)


@settings(max_examples=600, deadline=None)
@given(x=FLOATS, digits=st.integers(1, 17))
def test_decimals_are_pythons(x, digits):
    """Python's own formatting has the same digits."""
    got = decimal(Fraction(x), digits)
    assert float(got) == float(f"{x:.{digits - 1}e}") + 0.0
    assert len(got.partition("e")[0].lstrip("-0.").replace(".", "")) <= max(digits, 9)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", Fraction(1, 10)),
        (" +2e3 ", 2000),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("-1E-2", Fraction(-1, 100)),
        ("2^-24", Fraction(1, 2**24)),
        ("-2**10", -1024),
        ("2", 2),
        ("2e1", 20),
    ],
)
def test_a_typed_number_is_read_exactly(text, value):
    minus, size = sums.read("number", text)
    assert (-size if minus else size) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one", "number must be a number, such as 0.1, 1e-4 or 2^-24, not “one”"),
        ("", "not “”"),
        ("1\n", "must be a number"),
        ("1e999", "an exponent from -400 to 400"),
        ("1" * 41, "at most 40 letters"),
    ],
)
def test_what_is_no_number_is_refused(text, said):
    with pytest.raises(ValueError) as caught:
        sums.read("number", text)
    assert said in str(caught.value)
