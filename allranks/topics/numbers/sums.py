"""Floating-point formats of few bits: what a number becomes in them, bit by bit.

Everything is exact: whole numbers and fractions, no floats. A *code* is the whole
number that a format's bits spell: sign, exponent, mantissa. Without the sign, codes and
numbers have the same order, so the next code is the next number.

fp32 and fp16 are IEEE 754's binary32 and binary16; bf16 is the upper half of binary32.
e5m2 and e4m3 are those of "FP8 Formats for Deep Learning"
(https://arxiv.org/abs/2209.05433), torch's ``float8_e5m2`` and ``float8_e4m3fn``. e4m3
has no infinity: what is too large becomes its largest number since torch 2.13
(https://github.com/pytorch/pytorch/pull/178817), and became NaN before. tf32 has
binary32's exponent and binary16's mantissa. It is rounded to the nearest even here, as
``cvt.rn.tf32`` does; the older ``cvt.rna`` differs in exact ties alone, which it rounds
away from zero (PTX ISA, https://docs.nvidia.com/cuda/parallel-thread-execution/).
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MOST_LETTERS, MOST_EXPONENT = 40, 400
NUMBER = re.compile(
    r"^ *([+-]?)(?:2(?:\*\*|\^)([+-]?\d{1,3})"
    r"|(?=\.?\d)(\d*)\.?(\d*)(?:[eE]([+-]?\d{1,3}))?) *$",
    re.ASCII,
)


@dataclass(frozen=True)
class Format:
    """A format: a sign, and so many bits of exponent and of mantissa.

    Attributes:
        label: its name for readers.
        infinite: whether its largest exponent is for inf and NaN alone.
    """

    label: str
    exponent: int
    mantissa: int
    infinite: bool = True

    @property
    def least(self) -> int:
        """Return the power of two that is the smallest number above zero."""
        return 2 - (1 << (self.exponent - 1)) - self.mantissa

    @property
    def sign(self) -> int:
        """Return the code of -0, which is the sign's bit."""
        return 1 << (self.exponent + self.mantissa)

    @property
    def top(self) -> int:
        """Return the code of the largest number."""
        return self.sign - (1 << self.mantissa if self.infinite else 1) - 1

    @property
    def nan(self) -> int:
        """Return a code of NaN."""
        return self.sign - (1 << (self.mantissa - 1) if self.infinite else 1)


FORMATS = {
    "fp32": Format("fp32", 8, 23),
    "tf32": Format("tf32", 8, 10),
    "bf16": Format("bf16", 8, 7),
    "fp16": Format("fp16", 5, 10),
    "e5m2": Format("fp8 e5m2", 5, 2),
    "e4m3": Format("fp8 e4m3", 4, 3, infinite=False),
}


def read(name: str, text: str) -> tuple[bool, Fraction]:
    """Return whether a typed number has a minus, and its exact size.

    Args:
        name: of the field, for the error.
        text: decimal, or a power of two such as 2^-24.

    Raises:
        ValueError: if the text is no number, or too long.

    >>> read("number", "-1e-4"), read("number", "2**3")
    ((True, Fraction(1, 10000)), (False, Fraction(8, 1)))
    """
    if len(text) > MOST_LETTERS:
        raise ValueError(f"{name} must have at most {MOST_LETTERS} letters")
    found = NUMBER.fullmatch(text)
    if not found:
        raise ValueError(
            f"{name} must be a number, such as 0.1, 1e-4 or 2^-24, not “{text}”"
        )
    # A fraction is exact; a float would round before the format in question does. The
    # limit keeps 10**power from filling the memory.
    minus, two, whole, part, ten = found.groups()
    power = int(two or ten or 0)
    if abs(power) > MOST_EXPONENT:
        raise ValueError(
            f"{name} must have an exponent from -{MOST_EXPONENT} to {MOST_EXPONENT}"
        )
    if two:
        return minus == "-", Fraction(2) ** power
    return minus == "-", int(whole + part) * Fraction(10) ** (power - len(part))


def encode(form: Format, size: Fraction, negative: bool = False) -> int:
    """Return the code of the nearest number, of two equally near ones the even.

    >>> [encode(FORMATS["bf16"], Fraction(n)) for n in (1, 256, 257, 259)]
    [16256, 17280, 17280, 17282]
    """
    code = 0
    if size:
        power = floor_log2(size)
        last = max(power - form.mantissa, form.least)  # the last bit's power of two
        code = round(size / Fraction(2) ** last)  # Python rounds ties to even
        code += (last - form.least) << form.mantissa
    if code > form.top:
        code = form.top + form.infinite  # inf, or the largest number
    return code + form.sign * negative


def decode(form: Format, code: int) -> Fraction | None:
    """Return the number of a code; None for inf and NaN.

    >>> decode(FORMATS["e4m3"], 0b1_1111_110)
    Fraction(-448, 1)
    """
    negative, code = code >= form.sign, code % form.sign
    if code > form.top:
        return None
    exponent, mantissa = code >> form.mantissa, code % (1 << form.mantissa)
    if exponent:
        mantissa += 1 << form.mantissa
    size = mantissa * Fraction(2) ** (form.least + max(exponent - 1, 0))
    return -size if negative else size


def add(form: Format, a: int, b: int) -> int:
    """Return the code of the sum of two codes' numbers, rounded once.

    >>> bf16 = FORMATS["bf16"]
    >>> add(bf16, encode(bf16, Fraction(256)), encode(bf16, Fraction(1)))
    17280
    """
    one, other = decode(form, a), decode(form, b)
    if one is None or other is None:
        inf = form.top + 1
        odd = [c for c, x in ((a, one), (b, other)) if x is None]
        if any(c % form.sign != inf for c in odd) or len(set(odd)) > 1:
            return form.nan  # NaN was there before, or inf - inf
        return odd[0]
    total = one + other
    negative = total < 0 or (total == 0 and min(a, b) >= form.sign)
    return encode(form, abs(total), negative)


def neighbors(form: Format, code: int) -> tuple[int | None, int | None]:
    """Return the codes of the next number below and above; None where none is finite.

    >>> [decode(FORMATS["bf16"], c) for c in neighbors(FORMATS["bf16"], 16256)]
    [Fraction(255, 256), Fraction(129, 128)]
    """
    negative, size = code >= form.sign, code % form.sign
    if size > form.top + form.infinite:
        return None, None  # NaN has no place among numbers
    outer = size + 1 if size < form.top else None
    inner = size - 1 if size else None
    if negative:
        outer = None if outer is None else outer + form.sign
        inner = 1 if inner is None else inner + form.sign  # above -0
        return outer, inner
    return form.sign + 1 if inner is None else inner, outer


def bits(form: Format, code: int) -> str:
    """Write a code in binary: sign, exponent and mantissa, apart.

    >>> bits(FORMATS["e4m3"], 56)
    '0 0111 000'
    """
    digits = f"{code:0{1 + form.exponent + form.mantissa}b}"
    return f"{digits[0]} {digits[1 : -form.mantissa]} {digits[-form.mantissa :]}"


def kind(form: Format, code: int) -> str:
    """Name what a code stands for: zero, subnormal, normal, inf or NaN."""
    size = code % form.sign
    if size > form.top:
        return "inf" if form.infinite and size == form.top + 1 else "NaN"
    return "normal" if size >> form.mantissa else "subnormal" if size else "zero"


def decimal(x: Fraction, digits: int = 9) -> str:
    """Write a number with so many digits at most, exactly rounded.

    >>> decimal(Fraction(1, 3), 4), decimal(Fraction(2) ** -149), decimal(Fraction(-8))
    ('0.3333', '1.40129846e-45', '-8')
    """
    if not x:
        return "0"
    minus, x = "-" if x < 0 else "", abs(x)
    power = len(str(x.numerator)) - len(str(x.denominator))
    power -= x < Fraction(10) ** power
    number = round(x / Fraction(10) ** (power - digits + 1))
    power += number == 10**digits
    text = str(number).rstrip("0")
    if not -5 <= power < 9:
        dot = "." if len(text) > 1 else ""
        return f"{minus}{text[0]}{dot}{text[1:]}e{power}"
    if power < 0:
        return f"{minus}0.{'0' * (-power - 1)}{text}"
    whole = text[: power + 1].ljust(power + 1, "0")
    return f"{minus}{whole}{'.' if text[power + 1 :] else ''}{text[power + 1 :]}"


def floor_log2(x: Fraction) -> int:
    """Return the power of two of a number's first bit."""
    power = x.numerator.bit_length() - x.denominator.bit_length()
    return power - (x < Fraction(2) ** power)
