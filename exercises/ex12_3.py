"""What 4 ranks have saved, 3 can load.

Ranks: 3, 4
Minutes: 15

`num_saved` ranks have saved a tensor of shape `shape`. Each of them wrote its own rows
into a file, and `read(i)` returns what rank i wrote. Now you train with another number
of ranks. Return this rank's rows of the tensor.

In both jobs, rows are cut as FSDP2 cuts them. Of N ranks, each gets c = ⌈rows / N⌉
rows: rank 0 the first c rows, rank 1 the next c, and so on, until none are left. So the
last rank may have fewer rows, and some ranks may have none.

Files are large. So read only files with rows that this rank needs, and each of them
only once. A rank that gets no rows reads nothing, and returns an empty float32 tensor
of shape `(0, *shape[1:])`. Don't call collectives.

Hint 1: Which rows of the whole tensor does this rank get? Which rows did rank i write?
Hint 2: Both are ranges of rows. File i begins with row `i * old`, so row `begin` of the
tensor is row `begin - i * old` of the file.
Hint 3: Read the files from `begin // old` to `(end - 1) // old`, and take
`part[max(begin - i * old, 0) : end - i * old]` of each.
"""


# %% solution
def ex12_3(shape, num_saved, read):
    """Return this rank's rows of a tensor, out of the files that have them."""
    rows, rank, world_size = shape[0], dist.get_rank(), dist.get_world_size()
    old, new = -(-rows // num_saved), -(-rows // world_size)
    begin, end = min(rank * new, rows), min((rank + 1) * new, rows)
    if begin == end:
        return torch.empty(0, *shape[1:])
    parts = [
        read(i)[max(begin - i * old, 0) : end - i * old]
        for i in range(begin // old, (end - 1) // old + 1)
    ]
    return torch.cat(parts)


# %% check
CASES = {  # shape, ranks that saved
    "4 ranks have saved 10 rows": ((10, 3), 4),
    "4 ranks have saved 12 rows": ((12, 2), 4),
    "one rank has saved": ((10, 3), 1),
    "2 ranks have saved a vector": ((7,), 2),
    "5 ranks have saved 9 rows, so the last has only one": ((9, 2), 5),
    "8 ranks have saved 9 rows, so some have none": ((9, 2), 8),
    "fewer rows than ranks": ((2, 5), 4),
    "more dimensions": ((11, 2, 3), 3),
}


def check(answer, case):
    only("", "each rank can read for itself.")
    for name, (shape, num_saved) in case.each(CASES):
        whole = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
        rows, old = shape[0], -(-shape[0] // num_saved)
        mine = whole[-(-rows // world_size) * rank :][: -(-rows // world_size)]
        begin, asked = -(-rows // world_size) * rank, []
        needed = sorted({(begin + row) // old for row in range(len(mine))})

        def read(i):
            if i not in range(num_saved):
                raise Wrong(f"rank {rank} reads file {i}; there are {num_saved} files.")
            asked.append(i)
            return whole[old * i : old * (i + 1)].clone()

        got = answer(shape, num_saved, read)
        evenly = whole.tensor_split(world_size)[rank]
        parts = whole.tensor_split(num_saved)
        what = f"what rank {rank} loads of {rows} rows in {num_saved} files"
        compare(what, got, mine, {
            "These are the rows as tensor_split deals them out, not as chunk does.":
                evenly,
            "This is the whole tensor.": whole,
            "This is what the rank of the same number has saved.":
                whole[old * rank : old * (rank + 1)],
            "These are all rows of the files, not only this rank's.":
                torch.cat([whole[old * i : old * (i + 1)] for i in needed] or [mine]),
        })  # fmt: skip
        if sorted(asked) != needed:
            raise Wrong(f"""rank {rank} loads the right rows, but reads the files
                {sorted(asked)}; it needs {needed}.""")
