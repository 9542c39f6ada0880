"""Answers to exercise 8.1 that the check must take or refuse."""


# %% right: asks torch's own function
# = from torch.distributed import _compute_bucket_assignment_by_size as assign
# = return assign(weights, [first_bytes, cap_bytes])[0] if weights else []
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


# %% wrong: lists them as they fill up
# -         buckets.append([])
# ~ held[dtype] = buckets[-1] => held[dtype] = []
# ~ del held[dtype] => buckets.append(held.pop(dtype)[0])
# ~ buckets => buckets + [bucket for bucket, _ in held.values()]
