"""Read a line of benchmark output.

Ranks: 1
Minutes: 8

A benchmark prints the name of a collective, `num_bytes`, the world size and `seconds`.
How fast is that? Return `(algorithm bandwidth, bus bandwidth)`, both in GB/s, where 1
GB is 10⁹ bytes. The algorithm bandwidth counts the bytes of the tensor. The bus
bandwidth counts the bytes that each rank sends when the collective runs in a ring.

The collective is one of `"all_reduce"`, `"all_gather"`, `"reduce_scatter"` and
`"broadcast"`. `num_bytes` is the size of the whole tensor: what each rank holds before
the call or, for an all_gather, after the call. (NVIDIA's nccl-tests count in this way.)
With a single rank, the bus bandwidth is 0, except for a broadcast, whose two bandwidths
are always equal.

Hint 1: Which part of the tensor does each rank have to send in a ring?
Hint 2: The algorithm bandwidth is bytes per second. For the bus bandwidth, multiply it
by the share of n that each rank sends: an all_reduce goes around the ring twice, the
others once.
Hint 3: The factors are 2 (W − 1) / W, (W − 1) / W, (W − 1) / W and 1.
"""


# %% solution
def ex7_1(collective, num_bytes, world_size, seconds):
    """Return (algorithm bandwidth, bus bandwidth) in GB/s."""
    trips = {"all_reduce": 2, "broadcast": None}.get(collective, 1)
    speed = num_bytes / seconds / 1e9
    factor = 1 if trips is None else trips * (world_size - 1) / world_size
    return speed, factor * speed


# %% check
LINES = {
    "an all_reduce on eight ranks": ("all_reduce", 10**9, 8, 0.01),
    "an all_reduce on two ranks": ("all_reduce", 4_000_000, 2, 0.003),
    "an all_gather": ("all_gather", 64_000_000, 4, 0.002),
    "a reduce_scatter on three ranks": ("reduce_scatter", 3_000, 3, 0.0005),
    "a broadcast": ("broadcast", 10**8, 16, 0.004),
    "one rank": ("all_reduce", 10**6, 1, 0.001),
}


def check(answer, case):
    for name, (collective, num_bytes, size, seconds) in case.each(LINES):
        got = answer(collective, num_bytes, size, seconds)
        got = unpack(got, 2, "a pair of bandwidths")
        speed, share = num_bytes / seconds / 1e9, (size - 1) / size
        factor = {"all_reduce": 2 * share, "broadcast": 1}.get(collective, share)
        compare("the algorithm bandwidth", float(got[0]), speed, {
            "This counts in GiB; 1 GB is 10⁹ bytes.": num_bytes / seconds / 2**30,
            "These are Gb/s, bits; GB/s are asked for.": 8 * speed,
            "These are bytes per second, not GB/s.": 1e9 * speed,
            "This is the bus bandwidth; it comes second.": factor * speed,
        })  # fmt: skip
        compare("the bus bandwidth", float(got[1]), factor * speed, {
            "This is the algorithm bandwidth.": speed,
            "An all_reduce goes around twice.": share * speed,
            "Only an all_reduce goes around twice.": 2 * share * speed,
            "A rank's own chunk need not travel.": 2 * speed,
        })  # fmt: skip
