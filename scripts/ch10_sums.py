"""Chapter 10 - A sum of W terms in bf16: the order decides what is lost.

Run it (no GPU needed):
    python scripts/ch10_sums.py
"""

import job  # first, since importing torch takes seconds

import torch

UNIT = 2.0**-8  # bf16 rounds by at most this share of a number


def in_turn(terms: torch.Tensor) -> torch.Tensor:
    """Add rank by rank, as a ring does: each sum is rounded to the dtype."""
    total = terms[0].clone()
    for term in terms[1:]:
        total += term
    return total


def in_pairs(terms: torch.Tensor) -> torch.Tensor:
    """Add neighbors, then the sums of neighbors, as a tree does."""
    while len(terms) > 1:
        odd = terms[len(terms) // 2 * 2 :]
        terms = torch.cat([terms[:-1:2] + terms[1::2], odd])
    return terms[0]


def in_float32(terms: torch.Tensor) -> torch.Tensor:
    """Add rank by rank in float32, and round once, at the end."""
    return in_turn(terms.float()).to(terms.dtype)


ORDERS = in_turn, in_pairs, in_float32


def bound(order, num: int) -> float:
    """Return what the error can be at most, as a share of the sum of |x|.

    Each rounding multiplies by a number between 1 - unit and 1 + unit.
    """
    if order is in_float32:
        return (1 + 2.0**-24) ** (num - 1) * (1 + UNIT) - 1
    roundings = num - 1 if order is in_turn else (num - 1).bit_length()
    return (1 + UNIT) ** roundings - 1


def error(order, terms: torch.Tensor) -> torch.Tensor:
    """Return the error of each column's sum, as a share of its sum of |x|."""
    exact = terms.double().sum(dim=0)
    wrong = (order(terms).double() - exact).abs()
    return wrong / terms.double().abs().sum(dim=0)


def make_terms(num: int, columns: int, mean: float, seed: int):
    """Return bf16 terms, (num, columns): random ones, around this mean."""
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(num, columns, generator=draw)
    return (noise + mean).bfloat16()


def parse_args(argv: list[str] | None = None):
    """Read the flags; the terms are random numbers around --mean."""
    numbers = {"most_ranks": 1024, "columns": 4096, "seed": 0}
    args = job.Flags(__doc__, **numbers, mean=1.0).parse_args(argv)
    if args.most_ranks < 4:
        job.refuse(f"--most-ranks {args.most_ranks}: must be 4 to 65536")
    if args.most_ranks * args.columns > 2**24:  # several copies in float64
        why = f"--most-ranks {args.most_ranks} x --columns {args.columns}"
        job.refuse(f"{why}: must be {2**24} numbers at most, for the memory")
    return args


def main() -> None:
    """Compare three orders, by their errors and by what they can be."""
    args = parse_args()
    sizes = [4**k for k in range(1, 9) if 4**k <= args.most_ranks]
    ones = torch.ones(max(sizes), 1, dtype=torch.bfloat16)
    for order in ORDERS:
        name = order.__name__.replace("_", " ")
        job.put(f"{len(ones)} ones, added {name}: {order(ones).item():.0f}")
    job.put("mean error, in units of bf16's rounding (the bound in brackets)")
    job.put("ranks   " + "".join(f"{o.__name__:>20}" for o in ORDERS))
    for num in sizes:
        terms = make_terms(num, args.columns, args.mean, args.seed)
        cells = []
        for order in ORDERS:
            found = error(order, terms).mean().item() / UNIT
            cells.append(f"{found:.2f} ({bound(order, num) / UNIT:.0f})")
        job.put(f"{num:<8}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
