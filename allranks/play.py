"""Play a specimen: run a cell in a fresh program's state, and say how it ended."""

import os
import re
import sys
import tempfile
import textwrap

from allranks.ranks import Ranks
from allranks.report import RanksError, fold, group_ranks
from allranks.specimens import PLACES, Outcome, Specimen

HANG_S = 3.0  # seconds until a cell that is meant to hang counts as hung
LIMIT_S = 60.0  # seconds for any other
MAX_LINES = 3  # of an exception's message
_LAUNCHED = re.compile(r"RANK|LOCAL_|WORLD_|GROUP_|ROLE_|MASTER_|TORCHELASTIC")
COMPLAINT = re.compile(r"(?:\w+Error|\w+Warning|\berror): \S.*")
_WARNING = re.compile(r"^(?:ranks? [^:]+: )?\w+Warning: ", re.MULTILINE)


def play(specimen: Specimen, cell: str) -> Outcome:
    """Run one cell in the state of a fresh program, and say how it ended."""
    code, command = specimen.cells[cell], specimen.commands.get(cell)
    hangs = specimen.fields["outcome"] == "hangs" and cell in ("wrong", "claim")
    ranks, gpus = map(int, PLACES.match(specimen.fields["runs on"]).groups("0")[1:])
    text, error, alone = "", None, ranks < 2
    with (
        tempfile.TemporaryDirectory(prefix="allranks-") as place,
        Ranks(ranks or 1, timeout=HANG_S if hangs else LIMIT_S) as crew,
    ):
        crew.run(_prepare, place, not ranks, gpus)
        if command:
            ((exit_code, found),) = crew.run(_start, command, code, quiet=True)
            lines = [*sorted(crew.outputs[0].splitlines()), *found]
            lines += [f"(exit code {exit_code})"] if exit_code else []
            status = "warns" if _WARNING.search("\n".join(lines)) else "runs"
            return Outcome("raises" if exit_code else status, "\n".join(lines))
        try:
            for name, part in ("given", specimen.given), (cell, code):
                crew.run_cell(part, name, quiet=True)
                text += f"{fold(crew.outputs, list(range(ranks or 1)))}\n"
        except RanksError as failure:
            error = failure
            text += f"{fold(crew.outputs, list(range(ranks or 1)))}\n"
    return _judge(text, error, alone)


def _judge(text: str, error: RanksError | None, alone: bool) -> Outcome:
    """Say what the output and the report of live ranks amount to."""
    status = "warns" if _WARNING.search(text) else "runs"
    if error is not None:
        status = "raises" if error.errors else "hangs"
        last_words = {rank: _last_words(text) for rank, text in error.errors.items()}
        text += "\n".join(f"{who}: {end}" for who, end in group_ranks(last_words))
        text += "" if error.errors else str(error)
    text = re.sub(r"^rank 0: ?", "", text, flags=re.M) if alone else text
    return Outcome(status, re.sub(r"\n{2,}", "\n", text).strip())


def _last_words(traceback: str) -> str:
    """Cut a traceback down to the exception, and a long message to its first lines."""
    ends = re.split(r"^(?: .*\n)+", traceback, flags=re.M)
    plain = re.sub(r"/\S*/site-packages/|\x1b\[[0-9;]*m", "", ends[-1]).strip()
    lines = plain.split("\n")[:MAX_LINES]
    return "\n".join(textwrap.shorten(line, 240, placeholder=" …") for line in lines)


def _prepare(place: str, plain: bool, num_gpus: int) -> None:
    """On a rank: print warnings; forget the group if there is to be none."""
    import warnings

    import torch.distributed as dist

    def show(message, category, *where) -> None:
        text = " ".join(str(message).split())
        print(textwrap.shorten(f"{category.__name__}: {text}", 200, placeholder=" …"))

    os.chdir(place)
    warnings.simplefilter("default")
    warnings.simplefilter("ignore", ResourceWarning)
    warnings.showwarning = show
    if plain:
        dist.destroy_process_group()
        main = sys.modules["__main__"]
        for name in "rank", "local_rank", "world_size", "device", "dist":
            delattr(main, name)
        for name in filter(_LAUNCHED.match, list(os.environ)):
            del os.environ[name]
    if num_gpus:
        from allranks import vgpu

        vgpu.plug_in(num_gpus)


def _start(command: str, code: str) -> tuple[int, list[str]]:
    """On a rank: save a file and run it; return its exit code and its complaints."""
    import subprocess

    from torch.distributed import launch, run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    *words, name = command.split()
    for variable in "PYTHONUNBUFFERED", "OMP_NUM_THREADS":  # whole lines; no setting
        os.environ.pop(variable, None)
    while "=" in words[0]:
        variable, _, os.environ[variable] = words.pop(0).partition("=")
    with open(name, "w") as file:
        file.write(f"{code}\n")
    stderr, exit_code = os.dup(2), 0
    with open("stderr", "w+") as file:
        os.dup2(file.fileno(), 2)  # the children inherit it
        try:
            if words == ["python"]:
                exit_code = subprocess.run([sys.executable, name]).returncode
            elif words[0] == "torchrun":
                run.main([*words[1:], name])
            else:
                launch.main([*words[words.index("-m") + 2 :], name])
        except ChildFailedError as error:
            exit_code = error.get_first_failure()[1].exitcode
        finally:
            os.dup2(stderr, 2)
        file.seek(0)
        found = [m[0] for m in map(COMPLAINT.search, file) if m]
    return exit_code, sorted(set(found))
