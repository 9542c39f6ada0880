"""Choose GPUs from what nvidia-smi says.

Ranks: 1
Minutes: 12

You share a machine with others, and look for a GPU with enough free memory. This
command lists the GPUs as CSV, with the columns that you name:
`nvidia-smi --query-gpu=index,memory.free,utilization.gpu,… --format=csv`

```
index, memory.free [MiB], utilization.gpu [%], ecc.errors.uncorrected.volatile.total
0, 1201 MiB, 0 %, 0
1, 24210 MiB, 3 %, 0
```

`ex1_3(text, need_mib)` gets such a text, and the memory that you need, in MiB. Return a
list of the GPUs that will do, as integers from the column `index`, the best first.

- Find a column by the name before its unit. The columns may come in any order, and the
  column of ECC errors may be missing.
- A GPU will do if it has at least `need_mib` free, and no uncorrected ECC error. If its
  error count is `[N/A]`, its memory doesn't count errors, and it will do.
- A GPU whose free memory is `[N/A]` or `[Unknown Error]` will not do.
- The best GPU is the least utilized (`[N/A]` counts as 100 %). Among equals it is the
  one with the most free memory, and then the one with the lowest index.

Hint 1: Which is more as text, "980 MiB" or "12196 MiB"? And which column is free memory
    if the columns come in another order?
Hint 2: Read the header first, so that each row becomes a dictionary from
    `name.split(" ")[0]` to the cell. Then write one function that turns a cell into a
    number, or into `None` where there is none.
Hint 3: Sort by a tuple: `(utilization, -free, index)`.
"""


# %% solution
def ex1_3(text, need_mib):
    """Return the indices of the GPUs that will do, the best first."""

    def number(cell):
        word = cell.split(" ")[0]
        return int(word) if word.isdecimal() else None

    header, *rows = [line.split(", ") for line in text.splitlines()]
    names, found = [name.split(" ")[0] for name in header], []
    for row in rows:
        gpu = {name: number(cell) for name, cell in zip(names, row)}
        free, used = gpu["memory.free"], gpu["utilization.gpu"]
        errors = gpu.get("ecc.errors.uncorrected.volatile.total")
        if free is not None and free >= need_mib and not errors:
            found.append((100 if used is None else used, -free, gpu["index"]))
    return [index for *_, index in sorted(found)]


# %% check
HEAD = ("index", "memory.free [MiB]", "utilization.gpu [%]")
ECC = "ecc.errors.uncorrected.volatile.total"


def check(answer, case):
    def ask(name, rows, want, why, head=(*HEAD, ECC), need=4000):
        case(name)
        text = "\n".join(", ".join(row) for row in [head, *rows]) + "\n"
        got = answer(text, need)
        got = list(got) if isinstance(got, tuple) else got
        if isinstance(got, list) and all(type(i) is int for i in got) and got != want:
            raise Wrong(f"you choose {got}, and it should be {want}: {why}.")
        expect("your list", got, want)

    def pair(first, second):
        return [("0", *first.split(", ")), ("1", *second.split(", "))]

    idle, busy = ("0", "9000 MiB", "0 %", "0"), ("1", "20000 MiB", "70 %", "0")
    ask("an idle one before a large one", [busy, idle], [0, 1], "GPU 0 is idle")
    rows = pair("3999 MiB, 0 %, 0", "4000 MiB, 5 %, 0")
    ask("just enough memory", rows, [1], "3999 MiB is less than 4000, and 4000 is not")
    rows = pair("980 MiB, 0 %, 0", "12196 MiB, 0 %, 0")
    ask("980 is less than 12196", rows, [1], "GPU 0 has 980 MiB, and 4000 are needed")
    rows = pair("9000 MiB, 10 %, 0", "9000 MiB, 9 %, 0")
    ask("9 % is less than 10 %", rows, [1, 0], "GPU 1 is at 9 %, GPU 0 at 10 %")
    rows = pair("9000 MiB, 0 %, 0", "30000 MiB, 0 %, 0")
    ask("equally idle", rows, [1, 0], "GPU 1 has more free memory")
    rows = [(i, "9000 MiB", "0 %", "0") for i in ("10", "2", "1")]
    ask("all equal", rows, [1, 2, 10], "the lowest index comes first")
    rows = pair("9000 MiB, 0 %, 2", "9000 MiB, 5 %, 0")
    ask("ECC errors", rows, [1], "GPU 0 has 2 uncorrected errors")
    rows = pair("9000 MiB, 0 %, [N/A]", "9000 MiB, 5 %, 0")
    ask("no ECC", rows, [0, 1], "[N/A] errors are none")
    rows = [*pair("[Unknown Error], 0 %, 0", "[N/A], 0 %, 0"), ("2", *busy[1:])]
    ask("memory that cannot be read", rows, [2], "GPUs 0 and 1 do not tell theirs")
    rows = pair("9000 MiB, [N/A], 0", "9000 MiB, 99 %, 0")
    ask("utilization that cannot be read", rows, [1, 0], "[N/A] counts as 100 %")
    rows = pair("9000 MiB, [N/A], 0", "8000 MiB, 100 %, 0")
    why = "both count as 100 %, GPU 0 has more"
    ask("[N/A] and 100 % are equals", rows, [0, 1], why)
    head, rows = (ECC, *HEAD[::-1]), [row[::-1] for row in (idle, busy)]
    why = "the header says which is which"
    ask("another order of columns", rows, [0, 1], why, head)
    rows = [row[:3] for row in (idle, busy)]
    ask("no column of ECC errors", rows, [0, 1], "nothing speaks against them", HEAD)
    ask("none will do", [idle], [], "9000 MiB is less than 40000", need=40000)
    ask("no GPU at all", [], [], "there is only a header")
