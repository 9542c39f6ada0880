"""What torch makes of a number in its formats of few bits."""

from fractions import Fraction

import torch

from allranks.topics.numbers.sums import FORMATS, bits, decimal, read

DTYPES = {  # tf32 is no dtype: it is how some GPUs read float32 in a product
    "fp32": (torch.float32, torch.int32),
    "bf16": (torch.bfloat16, torch.int16),
    "fp16": (torch.float16, torch.int16),
    "e5m2": (torch.float8_e5m2, torch.uint8),
    "e4m3": (torch.float8_e4m3fn, torch.uint8),
}


def ask_torch(number: str, add: str) -> dict[str, tuple[str, str]]:
    """Return for each format the bits of a number, and its sum with another one.

    torch adds no fp8, so there the sum is that of float32, rounded.

    Args:
        number, add: as text, which ``numbers.read`` understands.
    """
    pair = []
    for name, text in ("number", number), ("add", add):
        minus, size = read(name, text)
        wide = min(size, 2**1000)  # a float that float32 calls infinite
        pair.append(torch.tensor([-float(wide) if minus else float(wide)]))
    found = {}
    for key, (dtype, whole) in DTYPES.items():
        form = FORMATS[key]
        a, b = (x.to(dtype) for x in pair)
        total = (a.float() + b.float()).to(dtype) if "fp8" in form.label else a + b
        code = a.view(whole).item() % (2 * form.sign)
        found[key] = bits(form, code), _show(total.float().item())
    return found


def _show(x: float) -> str:
    """Write a number as the explorable does."""
    if x != x:
        return "NaN"
    minus = "-" if str(x)[0] == "-" else ""
    if abs(x) == float("inf"):
        return f"{minus}inf"
    return minus + decimal(Fraction(abs(x)))
