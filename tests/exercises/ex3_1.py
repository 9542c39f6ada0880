"""Answers to exercise 3.1 that the check must take or refuse."""

# %% right: the longest common prefix, and a regular expression
import os
import re


def ex3_1(saved, names):
    def wrapping(keys):
        return re.match(r"(module\.)*", os.path.commonprefix(list(keys)))[0]

    theirs, ours = wrapping(saved), wrapping(names)
    return {ours + key[len(theirs) :]: value for key, value in saved.items()}


# %% wrong: lstrip takes letters, not a word
# = return {key.lstrip("module."): value for key, value in saved.items()}
# %% wrong: takes module. out everywhere
# = return {key.replace("module.", ""): value for key, value in saved.items()}
# %% wrong: takes one off wherever there is one, and never looks at the model
# = return {key.removeprefix("module."): value for key, value in saved.items()}
# %% wrong: goes by the order of the names
# = return dict(zip(names, saved.values()))
# %% wrong: changes the dictionary in place
# = while saved and not set(saved) & set(names):
# =     for key in list(saved):
# =         saved[key.removeprefix("module.")] = saved.pop(key)
# = return saved
# %% wrong: takes one off from every name that the model does not know; puts none on
# = found = {}
# = for key, value in saved.items():
# =     while key not in names and key.startswith("module."):
# =         key = key.removeprefix("module.")
# =     found[key] = value
# = return found
# %% wrong: matches the names without any module. in them
# = ours = {name.replace("module.", ""): name for name in names}
# = return {ours[key.replace("module.", "")]: value for key, value in saved.items()}
