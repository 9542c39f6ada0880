"""Answers to exercise 1.2 that the check must take or refuse."""


# %% right: numbers instead of pairs, and the first that runs from the newest down
def ex1_2(driver_cuda, capability, wheels):
    def number(version):
        return int(version.replace(".", ""))  # as sm_86 writes it

    gpu = number(capability)
    for wheel in sorted(wheels, key=number, reverse=True):
        if number(wheel) // 10 > number(driver_cuda) // 10:
            continue
        for kind, built in (arch.split("_") for arch in wheels[wheel]):
            same = int(built) // 10 == gpu // 10
            if int(built) <= gpu and (same or kind == "compute"):
                return wheel
    return None


# %% right: reads the rule about source to the letter
# ~ archs => wheel
# ~ in archs => in wheels[wheel]
# ~ if … => runs = pair(wheel) <= driver if kind == "compute" else built[0] == gpu[0]
# + if built <= gpu and runs:
# ~ wheels[w]) => w)
# %% wrong: compares versions as text
# ~ int(part) for part in text => text
# ~ int(digits[:-1]), int(digits[-1]) => digits[:-1], digits[-1]
# %% wrong: asks for a driver that is at least as new as the wheel, to the minor version
# ~ (w)[0] <= driver[0] => (w) <= driver
# %% wrong: wants code for exactly this GPU
# ~ <= gpu and (kind == "compute" or built[0] == gpu[0]) => == gpu and kind == "sm"
# %% wrong: any older code will do, as if it were source
# ~ gpu and (kind == "compute" or built[0] == gpu[0]) => gpu
# %% wrong: forgets the driver
# ~ pair(w)[0] <= driver[0] and has_code => has_code
