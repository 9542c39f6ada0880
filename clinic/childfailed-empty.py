r"""ChildFailedError: torchrun says that a rank failed, but not why.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: ChildFailedError[\s\S]*error_file: <N/A>

You see: a box of text that ends in `ChildFailedError`, with `error_file: <N/A>` and `To
enable traceback see ...`. The box is the last thing in the log, so it is what people
paste.

Cause: torchrun watches exit codes, and never sees the exception. The process that
failed printed its traceback itself, further up, among the output of the other ranks.
`exitcode: -15` in the box marks victims: torchrun ended them because another rank had
failed.

Cure: search the log upwards for the first `Traceback`. For the next run, put `@record`
over `main`: it writes the exception to a file that torchrun reads, and then the box
holds the message and the traceback of the first failure.

Next time: with many ranks, start torchrun with `--log-dir logs --tee 3`, which gives
each rank a file of its own. Read the file of the rank that the box lists under `Root
Cause`, not of the one listed as `[0]`.

Links: https://github.com/Vision-CAIR/MiniGPT-4/issues/237 (a box with nothing in it)
https://github.com/deepinsight/insightface/issues/2182 (several ranks, the same empty box)
"""

# %% given
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def torchrun(script):
    """Start it, and show those lines of the box that speak of the cause."""
    Path("train.py").write_text(script)
    try:
        run.main(["train.py"])
    except ChildFailedError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        if "error_file: <N/A>" in lines:
            empty = [line for line in lines if line[:5] in ("error", "trace")]
            raise SystemExit("\n".join(["ChildFailedError:", *empty])) from None
        print("the box says:", *[line for line in lines if "Error: " in line])


# %% broken
torchrun("""
def main():
    raise ValueError("boom")

main()
""")

# %% fixed
torchrun("""
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise ValueError("boom")

main()
""")

# %% signs
# echo: ChildFailedError
# echo: Process failed with exitcode [1-9]
# echo: To enable traceback see: https://pytorch\.org/docs/stable/elastic/errors
# echo: failed \(exitcode: [1-9]\d*\) local_rank: \d+
# echo: CalledProcessError: Command '?\[.*(?:'-u',|local[-_]rank)
# echo: process \d+ terminated with exit code
# echo: exits with return code = \d
# unless: exitcode *[:=]? *-\d+\b
# unless: can't open file '|: command not found|Error while finding module specification
# echo: commands/launch\.py", line \d+, in \w+_launcher
