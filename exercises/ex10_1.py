"""Round at random, the same way on every rank.

Ranks: 1, 2
Minutes: 15

In bfloat16, a weight of 1.0 that gains 0.0001 in each step never moves, because each
sum is rounded back. If you round at random, the weight moves, and you don't need a copy
in float32. `x` is a float32 tensor. Return it in bfloat16, with each number rounded to
the bfloat16 number just below it or just above it, `lower` or `upper`. Choose `upper`
with probability `(x - lower) / (upper - lower)`, so that the mean over many draws is x.

Numbers that bfloat16 can hold exactly stay as they are, and so do zeros, ±inf and NaN.
All randomness must come from `generator`, which is in the same state on all ranks, so
that replicas of a weight stay equal. Don't change `x`. No number exceeds the largest
number of bfloat16.

Hint 1: A bfloat16 is the upper half of a float32's 32 bits. Of the gap between two
neighbors, what part do the lower 16 bits stand for?
Hint 2: Add a random whole number from 0 to 65535 to the 32 bits, and then clear the
lower 16. How often does a carry reach the upper half? And what becomes of NaN?
Hint 3: `bits = x.view(torch.int32)`, `torch.randint(0, 1 << 16, x.shape,
generator=generator, dtype=torch.int32)`, `& -65536`, and `.view(torch.float32)` again.
"""


# %% solution
def ex10_1(x, generator):
    """Return x in bfloat16, each number rounded at random to one of its neighbors."""
    noise = torch.randint(0, 1 << 16, x.shape, generator=generator, dtype=torch.int32)
    bits = (x.view(torch.int32) + noise) & -65536  # clears the lower half
    return torch.where(x.isfinite(), bits.view(torch.float32), x).bfloat16()


# %% check
DRAWS = 4096
EXACT = [0.0, -0.0, 1.0, -1.5, 256.0, 2.0**-130, float("inf"), -float("inf")]
PATTERNS = [0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001]  # NaN, as bits
BETWEEN = {  # by case: numbers, and the chance of the neighbor farther from zero
    "between two numbers": [(1 + 1/512, 0.25), (1 + 3/512, 0.75), (3 + 1/128, 0.5)],
    "very near one of them": [(1 + 1/8192, 1/64), (5 - 1/2048, 63/64)],
    "below zero": [(-1 - 1/512, 0.25), (-5 + 1/2048, 63/64)],
    "below a power of two": [(2 - 1/512, 0.75), (0.25 - 1/4096, 0.75)],
    "subnormal numbers": [(2.0**-133 + 2.0**-135, 0.25), (2.0**-135, 0.25)],
}  # fmt: skip


def drawn(answer, x, seed):
    """Return what the answer makes of x, after a look at its type."""
    with Untouched(x=x):
        got = answer(x, dice(seed))
    kind = getattr(got, "dtype", type(got).__name__)
    if kind != torch.bfloat16:
        raise Wrong(f"the result is {kind}, not a tensor of bfloat16.")
    if got.shape != x.shape:
        raise Wrong(f"the result has shape {list(got.shape)}, not {list(x.shape)}.")
    return got.float()


def judge(got, value, chance):
    """Is each number a neighbor of the value, and each as often as it should be?"""
    bits = torch.tensor(value).view(torch.int32) & -65536
    inner, outer = torch.stack([bits, bits + 65536]).view(torch.float32).tolist()
    if len(strange := got[(got != inner) & (got != outer)]):
        raise Wrong(f"""{value:.8g} became {strange[0].item():.8g}; its neighbors are
            {inner:.8g} and {outer:.8g}.""")
    share = (got == outer).float().mean().item()
    if abs(share - chance) > 6 * (chance * (1 - chance) / DRAWS) ** 0.5:
        raise Wrong(f"""of {DRAWS} times {value:.8g}, {100 * share:.3g} % became
            {outer:.8g} and the rest {inner:.8g}; it should be {100 * chance:.3g} %.""")


def check(answer, case):
    case("numbers that bfloat16 can hold")
    for seed in range(8):
        x = torch.tensor(EXACT)
        expect(f"of {EXACT}, the result", drawn(answer, x, seed), x, 0, 0)
    case("NaN")
    for seed in range(8):
        x = torch.tensor(PATTERNS).int().view(torch.float32)
        for bits, number in zip(PATTERNS, drawn(answer, x, seed).tolist()):
            if number == number:
                raise Wrong(f"NaN with the bits {bits:08x} became {number:g}.")
    for name, pairs in case.each(BETWEEN):
        for value, chance in pairs:
            judge(drawn(answer, torch.full((2, DRAWS // 2), value), 7), value, chance)
    case("the same weights on all ranks")
    x = torch.randn(1000, generator=dice(3))
    got = drawn(answer, x, 11)
    if torch.equal(got, drawn(answer, x, 12)):
        raise Wrong("two generators in different states led to the same result.")
    if not torch.equal(got, drawn(answer, x, 11)):
        raise Wrong("""the same numbers and the same generator led to two results: some
            of the randomness comes from elsewhere.""")
    for r, other in enumerate(every := everyone(got)):
        if apart := int((other != every[0]).sum()):
            raise Wrong(f"rank 0 and rank {r} rounded {apart} of 1000 weights apart.")
