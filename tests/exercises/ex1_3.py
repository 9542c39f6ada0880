"""Answers to exercise 1.3 that the check must take or refuse."""


# %% right: csv and regular expressions, and three sorts, which keep the order of equals
def ex1_3(text, need_mib):
    rows = []
    for row in csv.DictReader(text.splitlines(), skipinitialspace=True):
        row = {key.split()[0]: re.match(r"\d+", cell) for key, cell in row.items()}
        rows.append({key: m and int(m[0]) for key, m in row.items()})
    fit = [r for r in rows if (r["memory.free"] or -1) >= need_mib]
    fit = [r for r in fit if not r.get("ecc.errors.uncorrected.volatile.total")]
    fit.sort(key=lambda r: r["index"])
    fit.sort(key=lambda r: r["memory.free"], reverse=True)
    used = [100 if r["utilization.gpu"] is None else r["utilization.gpu"] for r in fit]
    return [r["index"] for _, r in sorted(zip(used, fit), key=lambda pair: pair[0])]


# %% right: a default for what is no number, and a tuple
# ~ cell => cell, otherwise
# ~ word… => try:
# +     return int(cell.split()[0])
# + except ValueError:
# +     return otherwise
# - return int(word) if word.isdecimal() else None
# ~ {name: number… => dict(zip(names, row))
# ~ gpu[… => number(gpu["memory.free"], -1), number(gpu["utilization.gpu"], 100)
# ~ gpu.get… => number(gpu.get("ecc.errors.uncorrected.volatile.total", "0"), 0)
# ~ free is not None and free >= need_mib => free >= need_mib
# ~ 100 if used is None else used, -free, gpu["index"] => used, -free, int(gpu["index"])
# ~ [… => tuple(index for *_, index in sorted(found))
# %% wrong: takes the columns as they come
#   names, found = [name.split(" ")[0] for name in header], []
# + names = "index", "memory.free", "utilization.gpu", "ecc.errors"
# ~ errors.uncorrected.volatile.total => errors
# %% wrong: compares text
# ~ int(word) if word.isdecimal() else None => word
# ~ if free… => if free >= str(need_mib) and errors in (None, "0", "[N/A]"):
# ~ (100 if… => (used, int(gpu["index"])))
# %% wrong: takes the most free memory first, however busy
# ~ 100 if used is None else used, -free => -free, 100 if used is None else used
# %% wrong: what is not a number is 0
# ~ None => 0
# %% wrong: does not look at ECC errors
# ~ need_mib and not errors => need_mib
# %% wrong: what has no utilisation comes behind all others
# ~ 100 if => 999 if
