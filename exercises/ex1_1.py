"""Read CUDA_VISIBLE_DEVICES.

Ranks: 1
Minutes: 8

The variable `CUDA_VISIBLE_DEVICES` lists the GPUs that a job may use, such as `2,0`.
The job then numbers them anew: its `cuda:0` is the machine's GPU 2, and its `cuda:1` is
GPU 0. Write the function that reads this list.

`ex1_1(value, num_gpus)` gets the variable's text, or `None` if it is not set, and the
number of GPUs in the machine. Return a list of integers: entry `i` is the number of the
GPU behind `cuda:i`. For `"2,0"` on a machine with 4 GPUs, this is `[2, 0]`.

- Not set: all GPUs, in order. Set but empty: no GPU.
- Entries keep their order. Spaces around an entry don't matter.
- The list ends **before** the first entry that is no GPU of this machine, such as `-1`,
  `all`, or a number that is too large. With 4 GPUs, `1,7,0` gives `[1]`.
- If a GPU comes twice before this end, the job sees **none**: `0,1,0` gives `[]`.

An entry is a number as `str` writes it, in the digits 0 to 9. So `10` is a number, but
`+2`, `1_0`, `07`, `1gpu` and a full-width `２` are not, although `int()` reads some of
them. (PyTorch itself accepts more, and knows UUIDs. Your function need not.)

Hint 1: Which GPU is `cuda:0` in a job that was started with `CUDA_VISIBLE_DEVICES=3`?
    And is an empty string the same as no variable?
Hint 2: Walk through the entries in their order, and stop at the first that is wrong. A
    GPU that comes up again ends everything, with another result.
Hint 3: Make a list of all valid names, `known = [str(gpu) for gpu in range(num_gpus)]`.
    If `entry.strip()` is not in it: `break`. If its number is already in your own list:
    `return []`.
"""


# %% solution
def ex1_1(value, num_gpus):
    """Return the physical GPU behind each cuda:i that a job sees."""
    if value is None:
        return list(range(num_gpus))
    known, gpus = [str(gpu) for gpu in range(num_gpus)], []
    for entry in map(str.strip, value.split(",")):
        if entry not in known:
            break
        if int(entry) in gpus:
            return []
        gpus.append(int(entry))
    return gpus


# %% check
CASES = {  # value, GPUs, list
    "not set": (None, 4, [0, 1, 2, 3]),
    "set and empty": ("", 4, []),
    "one GPU": ("3", 4, [3]),
    "another order": ("2,0,1", 4, [2, 0, 1]),
    "two digits": ("10,9", 16, [10, 9]),
    "spaces": (" 1 , 2", 4, [1, 2]),
    "-1 hides the rest": ("0,2,-1,1", 4, [0, 2]),
    "-1 alone": ("-1", 4, []),
    "too large": ("1,7,0", 4, [1]),
    "as many as GPUs": ("0,4", 4, [0]),
    "not a number": ("1,all,0", 4, [1]),
    "a trailing comma": ("1,0,", 4, [1, 0]),
    "named twice": ("0,1,0", 4, []),
    "twice, but behind the end": ("1,-1,1", 4, [1]),
    "a plus sign": ("1,+2,0", 4, [1]),
    "an underscore": ("9,1_0,0", 16, [9]),
    "a zero in front": ("1,02,0", 4, [1]),
    "a digit of another script": ("1,\uff12,0", 4, [1]),
    "no GPU in the machine": (None, 0, []),
}


def check(answer, case):
    for name, (value, num_gpus, want) in case.each(CASES):
        given = "not set" if value is None else repr(value)
        got = answer(value, num_gpus)
        got = list(got) if isinstance(got, (tuple, range)) else got
        what = f"With the variable {given} and {num_gpus} GPUs, your list"
        expect(what, got, want)
