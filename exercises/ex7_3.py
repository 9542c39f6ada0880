"""Fit the latency and the bandwidth.

Ranks: 1
Minutes: 15

You have timed some messages, and want to know how fast the link is. `num_bytes` lists
the sizes of the messages, and `seconds` lists how long they took. Return `(alpha,
bandwidth)`, in seconds and in bytes per second, so that `alpha + num_bytes / bandwidth`
comes as near as possible to `seconds`.

The sizes go from a byte to a gigabyte, and each time may be off by a few per cent. An
error of one per cent should count the same at every size. So make the sum of the
squares of the *relative* errors as small as possible.

Hint 1: A time of 20 ms is wrong by 1 ms. What does that do to an alpha of 10 µs, if you
fit absolute errors?
Hint 2: Divide everything by the measured time: alpha / t + beta n / t should be 1.
Hint 3: `torch.linalg.lstsq(A, ones)` with the columns 1 / t and n / t.
"""


# %% solution
def ex7_3(num_bytes, seconds):
    """Return (alpha, bandwidth), in seconds and in bytes per second."""
    n, t = (torch.tensor(v, dtype=torch.double) for v in (num_bytes, seconds))
    terms = torch.stack([1 / t, n / t], dim=1)
    alpha, beta = torch.linalg.lstsq(terms, torch.ones_like(t)[:, None]).solution
    return alpha.item(), 1 / beta.item()


# %% check
LINKS = {
    "a fast network": (5e-6, 50e9),
    "a slow network": (50e-6, 125e6),
    "a network far away": (5e-3, 12.5e6),
}


def fitted(n, t, weights):
    """Return the alpha and the bandwidth of the least weighted squares."""
    terms = torch.stack([torch.ones_like(n), n], 1) * weights[:, None]
    alpha, beta = torch.linalg.lstsq(terms, (t * weights)[:, None]).solution[:, 0]
    return alpha.item(), 1 / beta.item()


def check(answer, case):
    for name, noise in [(name, noise) for name in LINKS for noise in (0.0, 0.03)]:
        case(f"{name}, times that are wrong by {100 * noise:g} %")
        alpha, speed = LINKS[name]
        n = 2.0 ** torch.arange(0, 31, 3).double()
        t = (alpha + n / speed) * (1 + noise * torch.randn(len(n)).double())
        got = unpack(answer(n.tolist(), t.tolist()), 2, "a pair (alpha, bandwidth)")
        wanted, absolute = fitted(n, t, 1 / t), fitted(n, t, torch.ones_like(t))
        ends = (t[-1] - t[0]).item() / (n[-1] - n[0]).item()
        unlike = {} if not noise else {
            "This has the least absolute errors: the longest times decide.":
                absolute[0],
            "This is the time of the shortest message alone.": t[0].item(),
            "The squares are of errors relative to the square root.":
                fitted(n, t, t**-0.5)[0],
        }  # fmt: skip
        compare("alpha", float(got[0]), wanted[0], unlike, rtol=1e-4, atol=0)
        compare("the bandwidth", float(got[1]), wanted[1], {
            "This is beta, seconds per byte.": 1 / wanted[1],
            "This takes the ends alone.": 1 / ends if noise else -1.0,
        }, rtol=1e-4, atol=0)  # fmt: skip
