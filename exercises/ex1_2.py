"""Pick the wheel for a machine.

Ranks: 1
Minutes: 10

PyTorch offers several wheels, each built for one version of CUDA. Which of them run on
a given machine? The driver must be new enough for the wheel, and the wheel must hold
code for the GPU.

`ex1_2(driver_cuda, capability, wheels)` gets

- the CUDA version that `nvidia-smi` shows in its header, such as `"12.4"`;
- the compute capability of the GPU, such as `"8.9"`;
- a dictionary of the wheels: each key is a CUDA version, such as `"12.6"`, and its
  value lists the code in the wheel, as `torch.cuda.get_arch_list()` does.

Return the CUDA version of the newest wheel that runs, or `None` if none does. For
example, `{"12.6": ["sm_80"], "13.0": ["sm_86"]}` on the machine above gives `"12.6"`.
The rules are:

- A driver runs wheels of its own **major** version of CUDA, and of all older ones. So
  12.4 runs 11.8, 12.6 and 12.8, but not 13.0.
- `sm_86` is code for capability 8.6. It also runs on later GPUs of the same major
  version: on 8.9, but not on 8.0 or 9.0. The last digit is the minor version: `sm_100`
  is 10.0.
- `compute_90` is source code (PTX). It serves 9.0 and **every** later capability.
  Source needs a driver as new as the wheel, but you need not check that here.

Hint 1: Which of "9.2" and "12.6" is newer? See what Python's `max` says before you
    trust it.
Hint 2: Turn each version into a pair of integers first. Pairs compare as versions do.
Hint 3: `kind, digits = arch.split("_")`, then `built = int(digits[:-1]),
    int(digits[-1])`; `built <= gpu and (kind == "compute" or built[0] == gpu[0])`.
"""


# %% solution
def ex1_2(driver_cuda, capability, wheels):
    """Return the newest CUDA version in `wheels` that runs here, or None."""

    def pair(text):
        return tuple(int(part) for part in text.split("."))

    def has_code(archs):
        for arch in archs:
            kind, digits = arch.split("_")
            built = int(digits[:-1]), int(digits[-1])
            if built <= gpu and (kind == "compute" or built[0] == gpu[0]):
                return True
        return False

    gpu, driver = pair(capability), pair(driver_cuda)
    runs = [w for w in wheels if pair(w)[0] <= driver[0] and has_code(wheels[w])]
    return max(runs, key=pair, default=None)


# %% check
WHEELS = {
    "9.2": ["sm_50", "sm_60", "sm_70"],
    "11.8": ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"],
    "12.6": ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"],
    "12.8": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
    "13.0": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"],
}
SOME = {key: WHEELS[key] for key in ("11.8", "9.2")}
SOURCE = {"12.6": ["sm_80", "compute_80"], "11.8": ["sm_86"]}
EXACT = {"12.8": ["sm_86"], "11.8": ["sm_80"]}
CASES = {  # driver, capability, wheels, answer
    "a new driver, a new GPU": ("13.1", "9.0", WHEELS, "13.0"),
    "a driver of the same major version": ("12.4", "8.6", WHEELS, "12.8"),
    "an older driver": ("11.4", "8.0", WHEELS, "11.8"),
    "a driver that is too old for all": ("9.1", "6.1", {"12.6": ["sm_60"]}, None),
    "a GPU that the newest wheel left out": ("13.0", "6.1", WHEELS, "12.6"),
    "9.2 is older than 11.8": ("12.4", "7.0", SOME, "11.8"),
    "code of an older minor version": ("12.4", "8.9", EXACT, "12.8"),
    "code of a newer minor version": ("12.4", "8.0", EXACT, "11.8"),
    "capability 10.3": ("12.8", "10.3", WHEELS, "12.8"),
    "capability 11.0, no code of its major version": ("12.8", "11.0", WHEELS, None),
    "source serves a later GPU": ("12.6", "9.0", SOURCE, "12.6"),
    "source serves no earlier GPU": ("12.8", "7.5", SOURCE, None),
    "no wheel": ("12.4", "9.0", {}, None),
}


def check(answer, case):
    for name, (driver, capability, wheels, want) in case.each(CASES):
        with Untouched(wheels=wheels):
            got = answer(driver, capability, wheels)
        if got != want:
            raise Wrong(f"""for a driver with CUDA {driver}, capability {capability} and
                wheels for {", ".join(wheels) or "nothing"} you return {got!r}; it
                should be {want!r}.""")
