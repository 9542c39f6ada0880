"""Run the tests of strangers with the classes of this book (``make outside``).

CLONES is a folder with clones of their repositories. Each is copied from its newest
commit into a temporary folder, where files of this folder take the place of theirs
that say what to test. Results go to book/_data/outside.json, and book/app_outside.md
shows them. Nothing of theirs is kept, and their clones are only read. What needs no
clone but an installed package runs if the package can be imported.

    python tests/outside CLONES                        # make outside CLONES=CLONES
    python tests/outside --installed                   # only what needs no clone
"""

import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "outside"
DATA = ROOT / "book" / "_data" / "outside.json"
PACKAGES = ROOT / "_build" / "outside"
ENDS = {"failure": "failed", "error": "failed", "skipped": "skipped"}
SAID = re.compile(
    r"^(?:E +)?((?:\w+\.)*\w*(?:Error|Exception|Warning)(?:: .+)?)$", re.M
)
TIMEOUT_S = 600  # of all tests of a file with one class
CLONES = {
    "assignment2-systems": "stanford-cs336/assignment2-systems",
    "nanochat": "karpathy/nanochat",
}
INSTALLED = ("transformers", "accelerate", "deepspeed")
FIRST_MUON = "3a5e0bc50b123f37220f1ace6813f080455d19f3"  # with which nanochat began
NEEDS = {"nanochat": FIRST_MUON}
ENV = {
    "CUDA_VISIBLE_DEVICES": "",  # the results are those of a CPU, anywhere
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # nanochat compiles its steps: minutes on a CPU
    "NANOCHAT_DTYPE": "float32",
    "HF_HUB_OFFLINE": "1",  # transformers reads what it wrote, and downloads nothing
    "DS_ACCELERATOR": "cpu",
}


@dataclass(frozen=True)
class Run:
    """The tests of a file that are run with each of some classes.

    ours: files of this folder, by the place that they take in the copy.
    edits: what is written in place of what in their file, and in words.
    """

    clone: str  # or an installed package
    file: str
    subjects: tuple[str, ...]
    ours: dict[str, str]
    select: str = ""  # pytest's -k
    edits: dict[str, str] = field(default_factory=dict)
    edited: str = ""


CS336 = {"tests/adapters.py": "cs336.py"}
STEPS = "nanochat", "tests/test_steps.py"
NEW = {"tests/test_steps.py": "steps.py"}
ZERO = "ch12_zero1.Zero1", "ch12_zero.Zero2"
ZERO = *ZERO, "torch.distributed.optim.ZeroRedundancyOptimizer"
BY_HAND = "ch8_per_parameter", "ch8_flat", "ch8_buckets", "ch8_ddp_by_hand"
DDP = tuple(f"{script}.DDP" for script in BY_HAND)
FSDP = "ch12_zero.Zero3", "torch.distributed.fsdp.fully_shard"
CLOSE = {
    "torch.equal(np_param.data, fsdp_full)": (
        "torch.allclose(np_param.data, fsdp_full, rtol=0, atol=1e-6)"
    )
}
ON_CPU = {"torch.cuda.is_available()": "True", 'DEVICE = "cuda"': 'DEVICE = "cpu"'}
ROWS = {"rows.py": "rows.py"}
ACCELERATE = {"test_accelerate.py": "accelerate_rows.py", "launcher.py": "launcher.py"}
ACCELERATE |= ROWS
DEEPSPEED = {"test_deepspeed.py": "deepspeed_rows.py", "engine.py": "engine.py"} | ROWS
RUNS = [
    Run(
        "assignment2-systems",
        "tests/test_ddp.py",
        (*DDP, "torch.nn.parallel.DistributedDataParallel"),
        CS336,
    ),
    Run("assignment2-systems", "tests/test_sharded_optimizer.py", ZERO, CS336),
    Run("assignment2-systems", "tests/test_fsdp.py", FSDP, CS336),
    Run(
        "assignment2-systems",
        "tests/test_fsdp.py",
        FSDP,
        CS336,
        select="correctness and fp32",
        edits=CLOSE,
        edited="within 1e-6, not bit for bit",
    ),
    Run(
        "nanochat",
        "tests/test_optim.py",
        ("ch12_muon.Muon", "torch.optim.Muon"),
        {"nanochat/optim.py": "nanochat.py"},
        select="not adamw",
        edits=ON_CPU,
        edited="on the CPU",
    ),
    Run(*STEPS, ("ch12_muon.Dealt",), NEW, select="newest_dealt"),
    Run(*STEPS, ("ch12_muon.Dealt", "torch.optim.Muon"), NEW, select="first_muon"),
    Run(*STEPS, ("ch12_muon.Dealt", "torch.optim.Muon"), NEW, select="newest_rule"),
    Run(*STEPS, ZERO, NEW, select="adamw"),
    Run("transformers", "test_llama.py", FSDP[1:], {"test_llama.py": "llama.py"}),
    Run("accelerate", "test_accelerate.py", FSDP[1:], ACCELERATE),
    Run("deepspeed", "test_deepspeed.py", FSDP[1:], DEEPSPEED),
]


def git(clone: Path, *words: str) -> bytes:
    """Return what git prints about a clone."""
    return subprocess.run(
        ["git", "-C", str(clone), *words], check=True, capture_output=True
    ).stdout


def find(folder: str | None) -> dict[str, dict]:
    """Return repository, commit and its day for each clone.

    Raises:
        SystemExit: with what to clone, if a clone is missing.
    """
    where = Path(folder or "DIR")
    found = {}
    for name, repository in CLONES.items():
        try:
            commit, day = git(where / name, "show", "-s", "--format=%H %cs").split()
            git(where / name, "cat-file", "-e", NEEDS.get(name, "HEAD"))
        except (OSError, subprocess.CalledProcessError):
            urls = (f"git clone https://github.com/{r}" for r in CLONES.values())
            why = f"{where / name} is no whole clone" if folder else "CLONES is not set"
            raise SystemExit(
                f"make outside: {why}: in a folder DIR run {' and '.join(urls)}, "
                "then make outside CLONES=DIR"
            ) from None
        found[name] = {
            "repository": repository,
            "commit": commit.decode(),
            "day": day.decode(),
        }
    return found


def installed() -> dict[str, dict]:
    """Return version and day for each package; say how to install what is missing."""
    found = {}
    for name in INSTALLED:
        try:
            found[name] = {"version": version(name), "day": f"{date.today()}"}
        except PackageNotFoundError:
            print(
                f"make outside: {name} is not installed, so its results stay as they "
                f"are: run pip install --target DIR {name}, then PYTHONPATH=DIR "
                "python tests/outside --installed"
            )
    return found


def unpack(clone: Path, commit: str, run: Run, copy: Path) -> None:
    """Write a commit's files into a folder, with those of a run in their places.

    Raises:
        ValueError: if their file lacks what is to be edited.
    """
    copy.mkdir()
    if commit:
        with tarfile.open(fileobj=io.BytesIO(git(clone, "archive", commit))) as tar:
            tar.extractall(copy, filter="data")
    if run.clone == "nanochat":
        first = git(clone, "show", f"{FIRST_MUON}:nanochat/muon.py")
        (copy / "muon.py").write_bytes(first)
    for place, name in run.ours.items():
        shutil.copy(HERE / name, copy / place)
    text = (copy / run.file).read_text("utf8")
    for old, new in run.edits.items():
        if old not in text:
            raise ValueError(f"{run.file} of {run.clone} has no {old!r} any more")
        text = text.replace(old, new)
    (copy / run.file).write_text(text, "utf8")


def rank(number: int, fn: Callable, *args: object) -> None:
    """Run a rank without pytest's filters, as a process that is new."""
    warnings.resetwarnings()
    fn(number, *args)


def inside(copy: Path, run: Run, subject: str) -> None:
    """Run the tests in this process, and leave pytest's report in the copy.

    Their ranks are forked from it, which has torch already: to spawn each rank, as
    they do, takes seconds more and changes nothing that they test.
    """
    import pytest
    import torch.multiprocessing as mp

    def forked(fn, args=(), nprocs=1, join=True, daemon=False, start_method=""):
        how = nprocs, join, daemon, "fork"
        return mp.start_processes(rank, (fn, *args), *how)

    for name in [*sys.modules]:  # a test of this file has a package of this name
        if name.partition(".")[0] == "tests":
            del sys.modules[name]
    os.setsid()
    os.chdir(copy)
    os.environ["SUBJECT"] = subject
    mp.spawn = forked
    paths = ROOT / "scripts", copy, copy / "cs336-basics", PACKAGES
    sys.path[:0] = map(str, paths)
    flags = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    flags += ["--junitxml", str(copy / "report.xml")]
    flags += ["-k", run.select] if run.select else []
    with open(copy / "output", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os._exit(pytest.main([*flags, "--rootdir", str(copy), str(copy / run.file)]))


def ends(report: Path) -> Iterator[tuple[str, str]]:
    """Yield each test of a report, and how it ended: with what it said, or an error."""
    for case in ElementTree.parse(report).iter("testcase"):
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        gap = f"gap {properties['gap']}" if "gap" in properties else ""
        gap = properties.get("said", gap)
        end, why = "passed", gap
        for kind in ENDS:
            if (found := case.find(kind)) is not None:
                text = f"{found.get('message')}\n{found.text}"
                said = [s for s in SAID.findall(text) if "ProcessRaised" not in s]
                end, why = ENDS[kind], gap or (said or [""])[-1]
        if "NotImplementedError" in why:
            end, why = "not offered", why.partition(": ")[2]
        yield case.get("name"), f"{end}: {why}" if why else end


def play(clone: Path, commit: str, run: Run, subject: str) -> dict[str, str]:
    """Run the tests of a file with a class; return their ends by name."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        unpack(clone, commit, run, copy)
        fork = multiprocessing.get_context("fork")
        child = fork.Process(target=inside, args=(copy, run, subject))
        child.start()
        child.join(TIMEOUT_S)
        if child.is_alive():
            os.killpg(child.pid, signal.SIGKILL)  # its ranks, too
            child.join()
        report = copy / "report.xml"
        if not report.is_file():
            print((copy / "output").read_text("utf8"), file=sys.stderr)
            raise RuntimeError(f"{run.file} with {subject}: no report; see above")
        return dict(ends(report))


def main(argv: list[str]) -> None:
    """Run all, and write the record; what doesn't run stays in it."""
    alone = argv == ["--installed"]
    clones = {} if alone else find(argv[0] if argv and argv[0] else None)
    packages = installed()
    if not alone and not (PACKAGES / "einx").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        pip += [str(PACKAGES), "-r", str(HERE / "requirements.txt")]
        subprocess.run(pip, check=True)
    os.environ |= ENV  # before torch is imported, once for all
    import torch
    import torch.distributed.fsdp
    import torch.distributed.optim

    record = json.loads(DATA.read_text("utf8"))
    ran = clones | packages
    rows = [row for row in record["rows"] if row["clone"] not in ran]
    for run in (run for run in RUNS if run.clone in ran):
        found = {}
        for subject in run.subjects:
            clone = Path(argv[0], run.clone)
            commit = clones.get(run.clone, {}).get("commit", "")
            for test, end in play(clone, commit, run, subject).items():
                print(f"{run.file}::{test} with {subject}: {end}", flush=True)
                found.setdefault(test, {})[subject] = end
        about = {"clone": run.clone, "file": run.file, "edited": run.edited}
        rows += [{**about, "test": test, "ends": ends} for test, ends in found.items()]
    now = {"torch": torch.__version__}
    if clones:
        record |= {"day": f"{date.today()}", **now, "clones": clones}
    packages = {name: about | now for name, about in packages.items()}
    record["installed"] = record.get("installed", {}) | packages
    order = [*CLONES, *INSTALLED]
    record["rows"] = sorted(rows, key=lambda row: order.index(row["clone"]))
    DATA.write_text(json.dumps(record, indent=1) + "\n", "utf8")


if __name__ == "__main__":
    main(sys.argv[1:])
