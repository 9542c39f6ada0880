"""Answers to exercise 1.1 that the check must take or refuse."""

# %% right: a pattern for the entry, and a dictionary that keeps the order
# ~ known, … => gpus = {}
# ~ map(str.strip, value.split(",")) => value.split(",")
# ~ if entry … => match = re.fullmatch(r" *(0|[1-9][0-9]*) *", entry)
# + if match is None or int(match[1]) >= num_gpus:
# ~ entry => match[1]
# ~ gpus.append(int(entry)) => gpus[int(match[1])] = True
# ~ gpus => list(gpus)
# %% right: asks the machine's own numbers, and looks for twins at the end
# = known = {str(gpu): gpu for gpu in range(num_gpus)}
# = if value is None:
# =     return tuple(known.values())
# = entries = (entry.strip() for entry in value.split(","))
# = names = list(itertools.takewhile(known.__contains__, entries))
# = return [known[name] for name in names] if len({*names}) == len(names) else []
# %% wrong: an empty variable is taken for none
# ~ value is None => not value
# %% wrong: a mask of which GPUs are visible, so their order is lost
# ~ known, … => entries = [e.strip() for e in value.split(",")]
# + return [gpu for gpu in range(num_gpus) if str(gpu) in entries]
# %% wrong: leaves out what is wrong, and reads on
# ~ break => continue
# %% wrong: believes each number, as int() does
# ~ known, … => return [int(entry) for entry in value.split(",") if entry]
# %% wrong: a GPU that is named twice counts once
# ~ return [] => continue
# %% wrong: returns the entries as text
# ~ list(range(num_gpus)) => [str(gpu) for gpu in range(num_gpus)]
# ~ gpus.append(int(entry)) => gpus.append(entry)
# %% wrong: takes what int() takes: +2, 1_0, 07
# ~ if entry … => try:
# +     known.index(str(int(entry)))
# + except ValueError:
# %% wrong: takes the decimal digits of any script
# ~ if entry … => zero = entry[:1] == "0" < entry[1:]
# + if not entry.isdecimal() or zero or int(entry) >= num_gpus:
