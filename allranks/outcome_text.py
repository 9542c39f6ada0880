"""What a page shows of an outcome: the last words, and nothing that differs by run."""

import re
import textwrap

MAX_LINES = 4  # of an exception's message
FRAMES = re.compile(r'^(?:  File ".*\n(?:    .*\n)*)+', re.MULTILINE)


def _in_order(found: re.Match) -> str:
    """Sort the members of a set, whose order differs from process to process."""
    return f"{{{', '.join(sorted(found[0][1:-1].split(', ')))}}}"


PASSING = {  # what differs from run to run, and what stands for it
    re.compile(r"(?<=\[127\.0\.0\.1\]:)\d+"): "PORT",
    re.compile(r"(?<=\[::1\]:)\d+"): "PORT",
    re.compile(r"(?<=\(127\.0\.0\.1, )\d+"): "PORT",
    re.compile(r"(?<=\(localhost, )\d+"): "PORT",
    re.compile(r"(?<=port: )\d+"): "PORT",
    re.compile(r"(\bpid[ :=]{1,2}|\bPID )\d+"): r"\1PID",
    re.compile(r"(?:/[\w.-]+)*/allranks-[^/\s'\"]+"): "/FOLDER",
    re.compile(r"\b[EWI]\d{4} [\d:.]+ +\d+ +(?:\S*/)?torch/"): "torch/",
    re.compile(r"(\b[Pp]rocess )\d+(?= got signal| closing| exited)"): r"\1PID",
    re.compile(r"(of binary: )\S+"): r"\1python",
    re.compile(r"[\w./-]*/site-packages/|/__w/pytorch/pytorch/"): "",
    re.compile(r"0x[0-9a-f]{6,}"): "0xADDRESS",
    re.compile(r"\{'[\w:]+'(?:, '[\w:]+')+\}"): _in_order,
    re.compile(r"\{torch\.\w+(?:, torch\.\w+)+\}"): _in_order,
    # A dead peer's socket is reset if it had not read all, and closed otherwise.
    re.compile(
        r"pair\.cc:\d+\] Connection closed by peer (\[\S+\]:PORT)\. (This is typically "
        r"caused by a remote worker )crashing"
        r"(?=[\s\S]*\nranks? [\d–, and]+ (?:was|were|ended) )"
    ): r"pair.cc:537] Read error \1: Connection reset by peer. \2hanging or bugs in "
    r"the application",
}


def clean(text: str) -> str:
    """Put names in place of the numbers that are others in each run."""
    for pattern, name in PASSING.items():
        text = pattern.sub(name, text)
    return text


def last_words(traceback: str) -> str:
    """Cut a traceback down to the exception, and a long message to its first lines."""
    ends = FRAMES.split(traceback)  # a message may have indented lines too
    plain = clean(re.sub(r"\x1b\[[0-9;]*m", "", ends[-1])).strip()
    lines = plain.split("\n")[:MAX_LINES]
    return "\n".join(textwrap.shorten(line, 300, placeholder=" …") for line in lines)
