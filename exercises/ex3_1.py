"""Fit the names of a file to a model.

Ranks: 1
Minutes: 10

A wrapper such as DDP or `DataParallel` puts `module.` in front of **every** name of a
state dict. Two wrappers put it there twice. So a file may fit a model but for these
prefixes.

`ex3_1(saved, names)` gets the file's state dict, and the list of names that the model
expects. Return a new dictionary with the values of `saved` under the model's names.
Leave `saved` as it is.

Count the wrappers on both sides: how many times do **all** names begin with `module.`?
If only some names do, it is no wrapper, but a part of the model that is called
`module`. Then take `module.` off all names, or put it on, as many times as the two
counts differ:

| the file has | the model expects | rename |
|---|---|---|
| `module.fc.weight`, `module.fc.bias` | `fc.weight`, `fc.bias` | take one off |
| `fc.weight`, `fc.bias` | `module.fc.weight`, `module.fc.bias` | put one on |
| `module.weight`, `head.weight` | `module.weight`, `head.weight` | nothing |

Hint 1: What does `"module.model.weight".lstrip("module.")` give? And `.replace`, for
    `encoder.module.weight`?
Hint 2: Write a function that counts the wrappers of a list of names. The difference
    between the two counts says how many to take off, or to put on.
Hint 3: `key.removeprefix("module.")` takes exactly one off, where there is one.
"""


# %% solution
def ex3_1(saved, names):
    """Return the values of `saved` under the names that the model expects."""

    def wrappers(keys):
        count = 0
        while keys and all(key.startswith("module.") for key in keys):
            keys = [key.removeprefix("module.") for key in keys]
            count += 1
        return count

    more = wrappers(list(saved)) - wrappers(list(names))
    if more > 0:
        return {key[len("module.") * more :]: saved[key] for key in saved}
    return {"module." * -more + key: saved[key] for key in saved}


# %% check
M = "module."
CASES = {  # the names in the file; the model's, in this order
    "equal names": (["fc.weight", "fc.bias"], ["fc.weight", "fc.bias"]),
    "one wrapper": ([f"{M}fc.weight", f"{M}fc.bias"], ["fc.weight", "fc.bias"]),
    "names that begin with the same letters": ([f"{M}model.dense"], ["model.dense"]),
    "module. in the middle": ([f"{M}enc.{M}a", f"{M}b"], [f"enc.{M}a", "b"]),
    "two wrappers": ([f"{M}{M}a", f"{M}{M}b"], ["a", "b"]),
    "a model that is wrapped": (["a", "b"], [f"{M}a", f"{M}b"]),
    "both are wrapped": ([f"{M}a", f"{M}b"], [f"{M}a", f"{M}b"]),
    "a submodule called module": ([f"{M}a", "head.a"], [f"{M}a", "head.a"]),
    "the same, wrapped": ([f"{M}{M}a", f"{M}head.a"], [f"{M}a", "head.a"]),
    "nothing but a submodule called module": ([f"{M}{M}a"], [f"{M}a"]),
    "names that only begin alike": (["modules.a", f"{M}b"], ["modules.a", f"{M}b"]),
    "another order": ([f"{M}b", f"{M}a"], ["b", "a"]),
    "twice the same end": ([f"{M}{M}a", f"{M}a"], [f"{M}a", "a"]),
    "an empty file": ([], []),
}


def check(answer, case):
    for name, (file, fitted) in case.each(CASES):
        saved = {key: torch.tensor(0.5 + 1.3 * i) for i, key in enumerate(file)}
        values = list(saved.values())
        got = answer(saved, sorted(fitted) or ["a"])
        if list(saved) != file:
            raise Wrong(f"you changed the dictionary you were given: {list(saved)}.")
        want = dict(zip(fitted, values, strict=True))
        if isinstance(got, dict) and set(got) != set(want):
            raise Wrong(f"""a file with {", ".join(file) or "nothing"} gives you
                {", ".join(got) or "nothing"}; the model expects
                {", ".join(want) or "nothing of it"}.""")
        expect("the result", got, want)
