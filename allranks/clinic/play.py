"""Play a specimen: run a cell in the state of a fresh program, and say how it ended."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import textwrap

from allranks.base.report import RanksError, fold, group_ranks
from allranks.clinic.cases import AND
from allranks.clinic.outcomes import Outcome, clean, last_words
from allranks.clinic.specimens import PLACES, Specimen
from allranks.live.ranks import Ranks

STALL_S = 0.4  # seconds without progress: then a cell that should hang is hung
HANG_S = 10.0  # seconds until it is, even if a rank polls and so seems to progress
LIMIT_S = 60.0  # seconds until any other cell is
_LAUNCHED = re.compile(r"RANK|LOCAL_|WORLD_|GROUP_|ROLE_|MASTER_|TORCHELASTIC")
COMPLAINT = re.compile(r"(?:\w+Error|\w+Warning|\berror|\bWARNING): \S.*")
_WARNING = re.compile(r"^(?:ranks? [^:]+: )?(?:\w+Warning|WARNING): ", re.MULTILINE)


def play(specimen: Specimen, cell: str) -> Outcome:
    """Run one cell in the state of a fresh program, and say how it ended.

    If the specimen has an invariant, it runs after the cell on the same ranks.

    Args:
        specimen: a row of the errata or a case of the clinic.
        cell: the name of one of its cells.
    """
    code, command = specimen.cells[cell], specimen.commands.get(cell)
    ranks, gpus = map(int, PLACES.match(specimen.fields["runs on"]).groups("0")[1:])
    everyone, text, error = list(range(ranks or 1)), "", None
    parts = [("given", specimen.given), (cell, code)]
    if check := specimen.invariant(cell):
        parts.append(("invariant", check))
    with (
        tempfile.TemporaryDirectory(prefix="allranks-") as place,
        Ranks(ranks or 1, timeout=HANG_S if specimen.hangs(cell) else LIMIT_S) as crew,
    ):
        crew.run(_prepare, place, not ranks, 0 if command else gpus)
        if command:
            crew.run_cell(specimen.given, "given", quiet=True)
            return _judge_command(crew, specimen, cell, gpus)
        crew.compare = False  # a reader's program has nobody who would
        crew.stall = STALL_S if specimen.hangs(cell) else None
        try:
            for name, part in parts:
                crew.run_cell(part, name, quiet=True)
                text += f"{fold(crew.outputs, everyone)}\n"
        except RanksError as failure:
            error = failure
            text += f"{fold(crew.outputs, everyone)}\n"
    return _judge(text, error, alone=ranks < 2, violates=name == "invariant")


def _judge(text: str, error: RanksError | None, alone: bool, violates: bool) -> Outcome:
    """Turn the output and the report of live ranks into an outcome.

    Args:
        alone: whether there is one rank only, which then is not named.
        violates: whether an exception comes from the invariant.
    """
    status = "warns" if _WARNING.search(text) else "runs"
    if error is not None:
        ends = {rank: last_words(said) for rank, said in error.errors.items()}
        text += "\n".join(f"{who}: {end}" for who, end in group_ranks(ends))
        if error.deaths:
            status = "dies"
            text += "".join(f"\n{w} {end}" for w, end in group_ranks(error.deaths))
        elif error.errors:
            status = "violates" if violates else "raises"
        else:
            status = "hangs"
            text += str(error)
    text = re.sub(r"^rank 0: ?", "", text, flags=re.M) if alone else text
    return Outcome(status, clean(re.sub(r"\n{2,}", "\n", text).strip()))


def _judge_command(crew: Ranks, specimen: Specimen, cell: str, gpus: int) -> Outcome:
    """Start a command on each rank, and turn how they ended into an outcome.

    If the specimen has virtual GPUs, the command is rehearsed. In it, ``{rank}`` stands
    for the rank and ``{port}`` for a free port.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = specimen.commands[cell].replace("{port}", f"{port}")
    signs = [f"(?:.*{sign.partition(AND)[0]}.*)" for _, sign in specimen.signs]
    ends = crew.run(_start, command, specimen.cells[cell], signs, gpus, quiet=True)
    lines, violated = [], ""
    for rank, (exit_code, found) in enumerate(ends):
        who = f"rank {rank}: " if len(ends) > 1 else ""
        printed = [*sorted(crew.outputs[rank].splitlines()), *found]
        printed += [f"(exit code {exit_code})"] if exit_code else []
        lines += [f"{who}{line}" for line in printed]
    text = "\n".join(lines)
    status = "warns" if _WARNING.search(text) else "runs"
    status = "raises" if any(exit_code for exit_code, _ in ends) else status
    if check := specimen.invariant(cell):  # on everything that the processes printed
        try:
            crew.run(f"text = {text!r}", on=[0])
            crew.run_cell(check, "invariant", on=[0], quiet=True)
        except RanksError as error:
            status, violated = "violates", f"\n{last_words(error.errors[0])}"
    return Outcome(status, clean(text + violated))


def _prepare(place: str, plain: bool, num_gpus: int) -> None:
    """Prepare a rank: print warnings, plug in GPUs, leave the group if there is none.

    Args:
        place: the folder in which the cell runs.
        plain: whether the cell runs in one process without a group.
        num_gpus: virtual GPUs to plug in.
    """
    import warnings

    def show(message: Warning | str, category: type[Warning], *where: object) -> None:
        text = " ".join(str(message).split())
        print(textwrap.shorten(f"{category.__name__}: {text}", 200, placeholder=" …"))

    os.chdir(place)
    os.environ["TMPDIR"] = tempfile.tempdir = place  # torchrun leaves folders behind
    warnings.simplefilter("default")
    warnings.simplefilter("ignore", ResourceWarning)
    warnings.showwarning = show
    if plain:
        main = sys.modules["__main__"]
        for name in "rank", "local_rank", "world_size", "device", "dist":
            delattr(main, name)
        _leave()
    if num_gpus:
        from allranks import vgpu

        vgpu.plug_in(num_gpus, kind="cuda")  # the names that scripts use


def _leave() -> int:
    """Leave the group and unset the launcher's variables; return the former rank."""
    import torch.distributed as dist

    rank = dist.get_rank() if dist.is_initialized() else 0
    if dist.is_initialized():
        dist.destroy_process_group()
    for name in filter(_LAUNCHED.match, list(os.environ)):
        del os.environ[name]
    return rank


def _start(
    command: str, code: str, signs: list[str], num_gpus: int
) -> tuple[int, list[str]]:
    """Save a file and run it on a rank; return its exit code and its complaints.

    Args:
        command: the command, which names the file.
        code: what the file holds.
        signs: regular expressions for lines of stderr to keep besides errors.
        num_gpus: virtual GPUs that the command gets.
    """
    from pathlib import Path

    from torch.distributed import launch, run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    rank = _leave()
    words = command.replace("{rank}", f"{rank}").split()
    # Buffered output comes in whole lines, and torchrun chooses the threads itself.
    for variable in "PYTHONUNBUFFERED", "OMP_NUM_THREADS":
        os.environ.pop(variable, None)
    while "=" in words[0]:
        variable, _, os.environ[variable] = words.pop(0).partition("=")
    path = next((Path(word) for word in words if word.endswith(".py")), None)
    path = path or Path(words[words.index("-m") + 1].replace(".", "/") + ".py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{code}\n")
    stderr, exit_code = os.dup(2), 0
    # torch 2.15 logs to what sys.stderr is at the time, which a rank replaces.
    log = contextlib.redirect_stderr(sys.__stderr__)
    with open(f"stderr{rank}", "w+") as file, log:
        os.dup2(file.fileno(), 2)  # child processes inherit it
        try:
            if num_gpus:
                stage = "-m", "allranks.rehearse", "--quiet", f"--gpus={num_gpus}"
                command = words[1:] if words[0] == "python" else words
                exit_code = subprocess.call([sys.executable, *stage, *command])
            elif words[0] == "python" and "torch.distributed.launch" not in words:
                exit_code = subprocess.call([sys.executable, *words[1:]])
            elif words[0] == "torchrun":
                run.main(words[1:])
            else:
                launch.main(words[words.index("-m") + 2 :])
        except BaseException as error:  # report it as the interpreter does at its end
            exit_code = 1
            os.write(2, f"\n{type(error).__qualname__}: {error}\n".encode())
            if isinstance(error, ChildFailedError):
                exit_code = error.get_first_failure()[1].exitcode
        finally:
            os.dup2(stderr, 2)
        file.seek(0)
        telling = re.compile("|".join([f"(?:{COMPLAINT.pattern})", *signs]))
        found = [m.group() for m in map(telling.search, file) if m]
    return exit_code, sorted(set(found))
