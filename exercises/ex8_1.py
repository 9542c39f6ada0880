"""Fill the buckets.

Chapter: 8
Ranks: 1
Minutes: 15

`weights` are a model's parameters in the order in which their gradients become ready.
Share them out into buckets as DDP does, and return a list of lists of indices:

- A bucket holds weights of one dtype only, in the order in which they become ready.
- A bucket is full as soon as it holds its limit in bytes, or more. The next weight of
  this dtype begins another one.
- The limit is `first_bytes` for the first bucket of each dtype, and `cap_bytes` for all
  others of it.

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
F, H, D = torch.float32, torch.bfloat16, torch.float64
CASES = {
    "all of one size": ([(10, F)] * 6, 40, 80),
    "a small first bucket": ([(5, F), (30, F), (20, F), (9, F), (1, F)], 16, 200),
    "a weight that is larger than the limit": ([(4, F), (500, F), (4, F)], 100, 100),
    "exactly full": ([(25, F), (25, F), (1, F)], 100, 100),
    "two dtypes in turn": (
        [(10, F), (20, H), (30, F), (5, F), (40, H), (1, F), (9, H), (70, H)],
        40,
        100,
    ),
    "three dtypes": ([(3, F), (2, D), (3, F), (2, D), (9, H), (9, F), (8, H)], 16, 40),
    "one weight": ([(7, H)], 1000, 1000),
    "none": ([], 100, 100),
}


def filled(
    sizes, first, cap, below=False, firsts=True, numbers=False, mixed=False, one=False
):
    """Return the buckets, or those that a mistake leads to."""
    buckets, open_ones, begun = [], {}, set()
    for i, (num, dtype) in enumerate(sizes):
        key = None if mixed else dtype
        own = None if one else key
        size = num if numbers else num * dtype.itemsize
        limit = first if own not in begun and firsts else cap
        if below and key in open_ones and open_ones[key][1] + size > limit:
            del open_ones[key]
            begun.add(own)
        if key not in open_ones:
            open_ones[key] = [[], 0]
            buckets.append(open_ones[key][0])
        open_ones[key][0].append(i)
        open_ones[key][1] += size
        limit = first if own not in begun and firsts else cap
        if not below and open_ones[key][1] >= limit:
            del open_ones[key]
            begun.add(own)
    return buckets


def check(answer, case):
    for name, (sizes, first, cap) in CASES.items():
        case(name)
        weights = [torch.empty(num, dtype=dtype) for num, dtype in sizes]
        untouched = Untouched(weights=[tuple(w.shape) for w in weights])
        got = answer(weights, first, cap)
        untouched()
        if not isinstance(got, (list, tuple)):
            raise Wrong(f"it returned {got!r:.60}, not a list of buckets.")
        got = [list(bucket) for bucket in got]
        wanted = filled(sizes, first, cap)
        if got != wanted and sorted(got) == sorted(wanted):
            raise Wrong(
                f"the buckets are right, but in another order: {got}; the one that "
                f"begins first comes first: {wanted}."
            )
        if [] in got:
            raise Wrong(f"there is an empty bucket: {got}.")
        mistakes = {
            "These buckets stay below their limit; DDP's reach it.": {"below": True},
            "The first limit was not used.": {"firsts": False},
            "The first limit was used for one dtype only.": {"one": True},
            "This counts numbers, not bytes.": {"numbers": True},
            "Two dtypes share a bucket.": {"mixed": True},
        }
        named = []
        for why, how in mistakes.items():
            if got == filled(sizes, first, cap, **how):
                named.append(why)
        if got == filled(sizes, first, first):
            named.append("The first limit was used for all.")
        if got != wanted:
            why = "".join(f" {one}" for one in named[:1])
            raise Wrong(f"it returned {got}; it should be {wanted}.{why}")


# %% right: asks torch's own function
import torch.distributed as dist


def ex8_1(weights, first_bytes, cap_bytes):
    if not weights:
        return []
    found = dist._compute_bucket_assignment_by_size(weights, [first_bytes, cap_bytes])
    return found[0]


# %% right: one dtype after the other, sorted at the end
def ex8_1(weights, first_bytes, cap_bytes):
    buckets = []
    for dtype in {weight.dtype for weight in weights}:
        limit, bucket, num_bytes = first_bytes, [], 0
        for i, weight in enumerate(weights):
            if weight.dtype == dtype:
                bucket.append(i)
                num_bytes += weight.nbytes
                if num_bytes >= limit:
                    buckets.append(bucket)
                    limit, bucket, num_bytes = cap_bytes, [], 0
        buckets += [bucket] if bucket else []
    return sorted(buckets)


# %% wrong: closes a bucket before it would be too full
# = buckets, held, limits = [], {}, {}
# = for i, weight in enumerate(weights):
# =     dtype, more = weight.dtype, weight.nbytes
# =     if dtype in held and held[dtype][1] + more > limits[dtype]:
# =         del held[dtype]
# =     if dtype not in held:
# =         buckets.append([])
# =         limits[dtype] = cap_bytes if dtype in limits else first_bytes
# =         held[dtype] = [buckets[-1], 0]
# =     held[dtype][0].append(i)
# =     held[dtype][1] += more
# = return buckets
# %% wrong: only the very first bucket is small
# = buckets, held, limit = [], {}, first_bytes
# = for i, weight in enumerate(weights):
# =     dtype = weight.dtype
# =     if dtype not in held:
# =         buckets.append([])
# =         held[dtype] = [buckets[-1], 0]
# =     held[dtype][0].append(i)
# =     held[dtype][1] += weight.nbytes
# =     if held[dtype][1] >= limit:
# =         del held[dtype]
# =         limit = cap_bytes
# = return buckets
# %% wrong: counts numbers
# -     held[dtype] = buckets[-1], 0
# - bucket, num_bytes = held[dtype]
# - bucket.append(i)
# - num_bytes += weight.numel() * weight.element_size()
# - held[dtype] = bucket, num_bytes
# - if num_bytes >= limits.get(dtype, first_bytes):
# +     held[dtype] = [buckets[-1], 0]
# + held[dtype][0].append(i)
# + held[dtype][1] += weight.numel()
# + if held[dtype][1] >= limits.get(dtype, first_bytes):
# %% wrong: puts all dtypes into one bucket
# = buckets, bucket, num_bytes = [], [], 0
# = for i, weight in enumerate(weights):
# =     bucket.append(i)
# =     num_bytes += weight.nbytes
# =     if num_bytes >= (cap_bytes if buckets else first_bytes):
# =         buckets.append(bucket)
# =         bucket, num_bytes = [], 0
# = return buckets + ([bucket] if bucket else [])
# %% wrong: lists them as they fill up
# = buckets, held, limits = [], {}, {}
# = for i, weight in enumerate(weights):
# =     dtype = weight.dtype
# =     bucket = held.setdefault(dtype, [])
# =     bucket.append(i)
# =     num_bytes = sum(weights[k].nbytes for k in bucket)
# =     if num_bytes >= limits.get(dtype, first_bytes):
# =         buckets.append(held.pop(dtype))
# =         limits[dtype] = cap_bytes
# = return buckets + list(held.values())
