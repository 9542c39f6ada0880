"""What a failing torchrun prints on a terminal, and who wrote which lines.

The record of a failing ``torchrun`` command is everything that a reader sees: the lines
of the ranks and those of torchrun. Whatever another run or another machine would print
differently has a stand-in: 31 January, 12:00:00 for every time; ``laptop`` for the
host; 4000 for torchrun's process id and 4001 + r for that of rank r; ``…/`` for the
folders of torch, torchrun, Python and temporary files; 8 for the line number in the
file ``torchrun``, because the installer writes that file.
"""

import re
from itertools import groupby

TIMES = re.compile(r"^([WEI])\d{4} [\d:.]+ \d+ ", re.MULTILINE)
DATES = re.compile(r"^(  time      : )\S+", re.MULTILINE)
HOSTS = re.compile(r"^(  host      : ).+", re.MULTILINE)
SEATS = re.compile(r"^  rank      : (\d+) .*\n  exitcode  : \S+ \(pid: (\d+)\)", re.M)
FOLDERS = re.compile(r"/\S*/(?:(?<=-packages/)(?=torch/)|(?=torchrun\"|error\.json))")
PYTHON = re.compile(r"(?<=of binary: )\S+")
STARTER = re.compile(r'(?<=…/torchrun", line )\d+')
# torchrun's own lines, and those that torch logs in C++ (``[W1122 … socket.cpp:469]``).
LOG = re.compile(r"\[?[WEI]\d{4} ")
FRAME = '  File "…/torchrun", line '
CARETS = re.compile(r"(?:\[rank\d+\]:)?[\s~^]*")
# On exit, Python writes the message and the newline apart, so two ranks' may merge.
MERGED = re.compile(r"(.{8,}?)\1+")
VARIES = re.compile(
    r"(?<=\(pid: )\d+|(?<=local_rank: )\d+|(?<=rank      : ).*"
    r"|(?<=\.py:)\d+(?=\])"  # a line number of torch's, which each release moves
)
# A frame of torch's own and what is indented below it: its statement and the carets.
OF_TORCH = re.compile(r'^(.*)File "…/torch/.*\n(?:\1  .*\n)*', re.MULTILINE)


def stand_in(text: str) -> str:
    """Replace each word that another run would print differently by a stand-in."""
    text = TIMES.sub(r"\g<1>0131 12:00:00.000000 4000 ", text)
    text = DATES.sub(r"\g<1>2026-01-31_12:00:00", text)
    text = HOSTS.sub(r"\g<1>laptop", text)
    text = STARTER.sub("8", PYTHON.sub("…/python", FOLDERS.sub("…/", text)))
    for rank, pid in SEATS.findall(text):
        text = re.sub(rf"(?<=(?:pid:|cess|.PID) ){pid}\b", str(4001 + int(rank)), text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def of_ranks(text: str) -> str:
    """Return the lines that ranks wrote, without repetitions of the line above.

    >>> of_ranks("W0131 12:00 x\\nlr 0: no\\nlr 0: no\\n[W0131 socket.cpp:469] y")
    'lr 0: no'
    """
    lines = [unmerged(line) for line in split(text)[0] if line]
    return "\n".join(line for line, _ in groupby(lines))


def unmerged(line: str) -> str:
    """Return only once what several ranks wrote into one line.

    >>> unmerged("lr 0: must be above 0lr 0: must be above 0")
    'lr 0: must be above 0'
    """
    twice = MERGED.fullmatch(line)
    return twice[1] if twice else line


def split(text: str) -> tuple[list[str], list[str]]:
    """Split a terminal with stand-ins into (the ranks' lines, torchrun's lines)."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(FRAME)]
    end = starts[-1] - 1 if starts else len(lines)  # "Traceback" is the line above
    ranks = [line for line in lines[:end] if not LOG.match(line)]
    logs = [line for line in lines[:end] if LOG.match(line)]
    return ranks, logs + lines[end:]


def same(old: str, new: str) -> bool:
    """Tell whether two terminals show the same failure.

    Some lines depend on chance: which of several failing ranks torchrun sees first,
    whether the others have ended by then or are ended, and in which order ranks write.
    How much of a statement a traceback underlines depends on Python's release, and
    torch's own frames depend on torch's.
    """
    return essence(old) == essence(new)


def essence(text: str) -> list[str]:
    """Return the lines that are the same in each run, whatever chance does."""
    ranks, own = split(OF_TORCH.sub("", text))
    ranks = sorted({unmerged(line) for line in ranks if not CARETS.fullmatch(line)})
    _, _, root = "\n".join(own).partition("Root Cause (first observed failure):")
    kept = ("Setting OMP_NUM_THREADS", "failed (exitcode", '  File "', "Child")
    own = [line for line in own if any(word in line for word in kept)]
    own += [line for line in root.splitlines() if not CARETS.fullmatch(line)]
    return ranks + [VARIES.sub("", line) for line in own]
