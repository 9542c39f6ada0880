"""How a cell ended: what a page shows of it, and the record of the last run.

A page shows the end of a run's output, but nothing that differs from run to run.
"""

import json
import re
import textwrap
from dataclasses import dataclass

from allranks.clinic.specimens import Specimen

RECORDS = "outcomes.json"  # beside the specimens
MAX_LINES = 4  # of an exception's message
FRAMES = re.compile(r'^(?:  File ".*\n(?:    .*\n)*)+', re.MULTILINE)


def _in_order(found: re.Match) -> str:
    """Sort the members of a set, because their order differs between processes."""
    return f"{{{', '.join(sorted(found[0][1:-1].split(', ')))}}}"


PASSING = {  # what differs from run to run, and what replaces it
    re.compile(r"(?<=\[127\.0\.0\.1\]:)\d+"): "PORT",
    re.compile(r"(?<=\[::1\]:)\d+"): "PORT",
    re.compile(r"(?<=\(127\.0\.0\.1, )\d+"): "PORT",
    re.compile(r"(?<=\(localhost, )\d+"): "PORT",
    re.compile(r"(?<=port: )\d+"): "PORT",
    re.compile(r"(\bpid(?:\(s\))?[ :=]{1,2}|\bPID )\d+"): r"\1PID",
    re.compile(r"(?:/[\w.-]+)*/allranks-[^/\s'\"]+"): "/FOLDER",
    re.compile(r"\b[EWI]\d{4} [\d:.]+ +\d+ +(?:\S*/)?torch/"): "torch/",
    re.compile(r"(\b[Pp]rocess )\d+(?= got signal| closing| exited)"): r"\1PID",
    re.compile(r"(of binary: )\S+"): r"\1python",
    re.compile(r"[\w./-]*/site-packages/|/__w/pytorch/pytorch/"): "",
    re.compile(r"/[\w./-]*/(?=python3\.\d+/\w)"): "",
    re.compile(r"0x[0-9a-f]{6,}"): "0xADDRESS",
    re.compile(r"\{'[\w:]+'(?:, '[\w:]+')+\}"): _in_order,
    re.compile(r"\{torch\.\w+(?:, torch\.\w+)+\}"): _in_order,
    # The socket of a dead process is reset if it had not read all, else closed.
    re.compile(
        r"pair\.cc:\d+\] Connection closed by peer (\[\S+\]:PORT)\. (This is typically "
        r"caused by a remote worker )crashing"
        r"(?=[\s\S]*\nranks? [\d–, and]+ (?:was|were|ended) )"
    ): r"pair.cc:537] Read error \1: Connection reset by peer. \2hanging or bugs in "
    r"the application",
}


def clean(text: str) -> str:
    """Replace what differs from run to run, such as ports and process ids, by names."""
    for pattern, name in PASSING.items():
        text = pattern.sub(name, text)
    return text


def last_words(traceback: str) -> str:
    """Shorten a traceback to its exception, and a long message to its first lines."""
    ends = FRAMES.split(traceback)  # a message may have indented lines too
    plain = clean(re.sub(r"\x1b\[[0-9;]*m", "", ends[-1])).strip()
    lines = plain.split("\n")[:MAX_LINES]
    return "\n".join(textwrap.shorten(line, 300, placeholder=" …") for line in lines)


@dataclass(frozen=True)
class Outcome:
    """How a cell ended.

    Attributes:
        status: "runs", "warns", "raises", "violates", "dies" or "hangs".
        text: what a reader sees of it.
    """

    status: str
    text: str


def recorded(specimen: Specimen) -> dict[str, Outcome]:
    """Return how each cell of a specimen ended when it was last recorded.

    Raises:
        LookupError: if not all of its cells are recorded.
    """
    path = specimen.path.with_name(RECORDS)
    entry = json.loads(path.read_text("utf8")).get(specimen.slug, {})
    if list(entry) != list(specimen.cells):
        raise LookupError(f"no outcome of {specimen.path.name}: make notebooks")
    return {name: Outcome(**outcome) for name, outcome in entry.items()}


def record(specimen: Specimen, outcomes: dict[str, Outcome]) -> None:
    """Record how each cell ended, and drop the entries of files that are gone."""
    path = specimen.path.with_name(RECORDS)
    entries = json.loads(path.read_text("utf8")) if path.is_file() else {}
    entries[specimen.slug] = {n: vars(o) for n, o in outcomes.items()}
    names = [name for name in sorted(entries) if path.with_name(f"{name}.py").exists()]
    kept = {name: entries[name] for name in names}
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf8")
