"""Fill the buckets.

Ranks: 1
Minutes: 15

`weights` are a model's parameters in the order in which their gradients become ready.
Put them into buckets as DDP does, and return a list of lists of indices:

- A bucket holds weights of one dtype only, in the order in which they become ready.
- A bucket is full as soon as its bytes reach its limit or exceed it. The next weight of
  this dtype begins a new bucket.
- The limit of each dtype's first bucket is `first_bytes`, and the limit of its later
  buckets is `cap_bytes`.

List the buckets in the order in which they begin. No bucket is empty.

Hint 1: A weight that is larger than the limit must go somewhere. Does the limit say how
much a bucket may hold, or how much is enough?
Hint 2: Keep one open bucket for each dtype. After you have added a weight, look whether
its bucket is full.
Hint 3: A weight has `weight.numel() * weight.element_size()` bytes. If you put a bucket
into the result when it begins, the order is right.
"""


# %% solution
def ex8_1(weights, first_bytes, cap_bytes):
    """Return the buckets, each a list of indices into weights."""
    buckets, held, limits = [], {}, {}
    for i, weight in enumerate(weights):
        dtype = weight.dtype
        if dtype not in held:  # no open bucket of this dtype
            buckets.append([])
            held[dtype] = buckets[-1], 0
        bucket, num_bytes = held[dtype]
        bucket.append(i)
        num_bytes += weight.numel() * weight.element_size()
        held[dtype] = bucket, num_bytes
        if num_bytes >= limits.get(dtype, first_bytes):
            del held[dtype]
            limits[dtype] = cap_bytes
    return buckets


# %% check
S, H, D = torch.float32, torch.bfloat16, torch.float64
TURNS = [(10, S), (20, H), (30, S), (5, S), (40, H), (1, S), (9, H), (70, H)]
CASES = {
    "all of one size": ([(10, S)] * 6, 40, 80),
    "a small first bucket": ([(5, S), (30, S), (20, S), (9, S), (1, S)], 16, 200),
    "a weight that is larger than the limit": ([(4, S), (500, S), (4, S)], 100, 100),
    "exactly full": ([(25, S), (25, S), (1, S)], 100, 100),
    "two dtypes in turn": (TURNS, 40, 100),
    "three dtypes": ([(3, S), (2, D), (3, S), (2, D), (9, H), (9, S), (8, H)], 16, 40),
    "one weight": ([(7, H)], 1000, 1000),
    "none": ([], 100, 100),
}


def check(answer, case):
    for name, (sizes, *limits) in case.each(CASES):
        weights = [torch.empty(num, dtype=dtype) for num, dtype in sizes]
        got = answer(weights, *limits)
        if not isinstance(got, (list, tuple)):
            raise Wrong(f"it returned {got!r:.60}, not a list of buckets.")
        got = [list(bucket) for bucket in got]
        want, known = reference(got, lambda function: function(weights, *limits))
        if got != want and sorted(got) == sorted(want):
            raise Wrong(f"""the buckets are right, but in another order: {got}; the one
                that begins first comes first: {want}.""")
        if [] in got:
            raise Wrong(f"there is an empty bucket: {got}.")
        if got != want:
            why = [f" {text}" for text, buckets in known.items() if buckets == got]
            raise Wrong(f"it returned {got}; it should be {want}.{''.join(why[:1])}")


# %% mistake: closes a bucket before it would be too full
# > These buckets stay below their limit; DDP's reach it.
#   bucket, num_bytes = held[dtype]
# + if bucket and num_bytes + weight.nbytes > limits.get(dtype, first_bytes):
# +     buckets.append(bucket := [])
# +     num_bytes, limits[dtype] = 0, cap_bytes
# ~ num_bytes >= limits.get(dtype, first_bytes) => False
# %% mistake: no bucket is small
# > The first limit was not used.
# ~ limits.get(dtype, first_bytes) => cap_bytes
# %% mistake: only the very first bucket is small
# > The first limit was used for one dtype only.
# ~ limits.get(dtype, first_bytes) => limits.get(0, first_bytes)
# ~ limits[dtype] => limits[0]
# %% mistake: counts numbers
# > This counts numbers, not bytes.
# ~ () * weight.element_size() => ()
# %% mistake: puts all dtypes into one bucket
# > Two dtypes share a bucket.
# ~ weight.dtype => None
# %% mistake: all buckets are small
# > The first limit was used for all.
# ~ limits.get(dtype, first_bytes) => first_bytes
