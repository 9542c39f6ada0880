"""What was executed, when and how: the file book/_data/status.json and its rules.

``book/_tools/execute.py`` records each run, with a digest of the code that ran. If the
code has changed since, the record no longer counts. A skip counts as a failure, because
what was skipped has not run either.
"""

import fcntl
import json
import re
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path

from book._ext.runs import inputs, one_file

DATA = "book/_data/status.json"
FOLDERS = {
    "notebooks": "*.ipynb",
    "scripts": "[cs]*_*.py",  # of chapters, and of the page Start here
    "errata": "*.py",
    "clinic": "*.py",
}
SKIP = re.compile(
    r"\b[1-9]\d* skip|^\s*skip\b|\bskipped\b", re.IGNORECASE | re.MULTILINE
)
RANKS = re.compile(r"\[rank \d+/(\d+)")
STATED = re.compile(r"^%ranks (\d+)|\bRanks\((\d+)|^runs on: (\d+) rank", re.MULTILINE)
VGPUS = re.compile(
    r"^%vgpus (\d+)|-m allranks.vgpu (\d+)|^runs on: (\d+) virtual", re.M
)
LAUNCHED = re.compile(r"\blaunch\(\s*[\"'][\w.]+[\"'],\s*(\d+|\[[\d, ]+\])")
LOOPED = re.compile(r"\bfor (?:world_size|num_ranks) in [(\[]([\d, ]+)[)\]]")
GOOD, SKIPPED, FAILED = "passed", "skips", "failed"


def files(root: Path) -> list[str]:
    """List everything that is executed, as paths from the root."""
    return [
        path.relative_to(root).as_posix()
        for folder, pattern in FOLDERS.items()
        for path in sorted((root / folder).glob(pattern))
        if folder != "clinic" or b"\nruns on: quoted\n" not in path.read_bytes()
    ]


def digest(path: Path) -> str:
    """Hash a file's own code; of a script, also what it takes from files beside it.

    This is what an output is shown with, so an edit of it needs a new record. What the
    code imports from the package may change: then the record is replayed (replayed.py).
    """
    found = inputs.code(path)
    if path.parent.name == "scripts":
        rest = one_file.needed(one_file.read(path))
        found += "".join(source.text(node) for source, node in rest)
    return inputs.short(found)


def world_sizes(code: str, output: str = "") -> set[int]:
    """Find the numbers of ranks that some code or command starts, or an output shows.

    >>> sorted(world_sizes('launch("a", [2, 1])', "[rank 0/2] x"))
    [2, 3]
    >>> world_sizes("torchrun --nnodes 2 --nproc-per-node 4 scripts/x.py")
    {8}
    """
    found = {int(number) for number in RANKS.findall(output)}
    found |= {int(number) for both in STATED.findall(code) for number in both if number}
    for text in LAUNCHED.findall(code):
        found.add(sum(map(int, re.findall(r"\d+", text))))
    for text in LOOPED.findall(code):
        found |= set(map(int, re.findall(r"\d+", text)))
    if each := re.search(r"\btorchrun .*--nproc-per-node (\d+)", code):
        nodes = re.search(r"--nnodes (\d+)", code)
        found.add(int(each[1]) * int(nodes[1] if nodes else 1))
    return found


@dataclass
class Run:
    """A run of a file, which ``add`` puts together and ``write`` records."""

    name: str
    code: str  # the digest of the file when it was started
    seconds: float = 0.0
    world_sizes: set[int] = field(default_factory=set)
    vgpus: int = 0
    outcome: str = GOOD

    @classmethod
    def of(cls, root: Path, path: Path) -> "Run":
        """Return a run of a file that is about to begin."""
        return cls(path.relative_to(root).as_posix(), digest(path))

    def add(self, seconds: float, code: str = "", output: str = "") -> None:
        """Add a part of the run: a command or all cells, and what they printed."""
        self.seconds += seconds
        self.world_sizes |= world_sizes(code, output)
        devices = [int(n) for three in VGPUS.findall(code) for n in three if n]
        self.vgpus = max([self.vgpus, *devices])
        if SKIP.search(output):
            self.outcome = SKIPPED

    def write(self, root: Path) -> None:
        """Record the run in the file of all runs, in place of an earlier one."""
        facts = {
            "date": date.today().isoformat(),
            "digest": self.code,
            "outcome": self.outcome,
            "seconds": round(self.seconds, 1),
            "torch": version("torch"),
            "vgpus": self.vgpus,
            "world_sizes": sorted(self.world_sizes),
        }
        with (root / DATA).open("a+") as file:  # several processes may write at once
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            runs = json.loads(file.read() or "{}") | {self.name: facts}
            exist = set(files(root))
            runs = {name: runs[name] for name in runs if name in exist}
            file.seek(0)
            file.truncate()
            file.write(json.dumps(runs, indent=1, sort_keys=True) + "\n")


def load(root: Path) -> dict[str, dict]:
    """Read the recorded runs, by the names of their files."""
    path = root / DATA
    return json.loads(path.read_text("utf8")) if path.is_file() else {}


def verdict(root: Path, name: str, runs: dict[str, dict]) -> str:
    """Say how a file's last run ended, or that this version has not run."""
    if name not in runs:
        return "never run"
    if runs[name]["digest"] != digest(root / name):
        return "changed since"
    return runs[name]["outcome"]
