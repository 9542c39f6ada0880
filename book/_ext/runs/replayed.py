"""Say what is replayed as a whole, and when it last was: book/_data/replayed.json.

A replay runs again what printed an output, and compares the two. It is due when its
inputs have changed (inputs.py) since it last went well. ``tests/replays.py`` decides
what runs when.
"""

import fcntl
import json
import re
from datetime import date
from importlib.metadata import version
from pathlib import Path

from allranks import clinic
from book._ext.runs import executed, records
from book._ext.runs.inputs import Tree, short

DATA = "book/_data/replayed.json"
SITE = "_build/html"
ALONE = (
    "exercises/ex*.py",
    "tests/test_ch*.py",
    "tests/test_exercises.py",
    "tests/test_job.py",
    "tests/test_wheel.py",
    "tests/book/test_chapter.py",
    "tests/book/test_one_file.py",
    "tests/book/test_paper.py",
    "tests/clinic/test_hangs.py",
    "tests/lab/test_*.py",
    "tests/allranks/backends/test_*.py",
    "tests/allranks/guard/test_*.py",
    "tests/allranks/launch/test_*.py",
    "tests/allranks/live/test_*.py",
    "tests/allranks/rehearse/test_*.py",
    "tests/allranks/vgpu/test_*.py",
    "tests/book/explorables/test_*.py",
)
FILE = re.compile(r"[\w/]+\.\w+")
ARTICLE = re.compile(r"\?v=\w+|<article.*</article>", re.DOTALL)


def digests(root: Path) -> dict[str, str]:
    """Hash the inputs of everything that is replayed, by its name: a file of the tree.

    That is each notebook, specimen and exercise; each page with commands; each page of
    the built book; and each file of tests that start many processes or use a figure.
    """
    tree, found = Tree(root), {}
    printed = {name: _outcomes(root / name) for name in ("clinic", "errata")}
    for name in [*executed.files(root), *_alone(root)]:
        folder, _, file = name.partition("/")
        if folder == "exercises":  # whose check is tried with answers
            answers = (p.read_text("utf8") for p in root.glob(f"tests/{name}"))
            found[name] = tree.digest([name], *answers)
        elif folder != "scripts":  # which their pages run
            outcome = printed.get(folder, {}).get(file.removesuffix(".py"))
            found[name] = tree.digest([name], json.dumps(outcome))
    for page in sorted(root.glob("book/*.md")):
        if commands := records.commands(page.read_text("utf8")):
            found[f"book/{page.name}"] = _of_commands(tree, commands)
    for page in sorted((root / SITE).glob("[bn]*/*.html")):  # of book and notebooks
        text = "".join(ARTICLE.findall(page.read_text("utf8")))
        found[page.relative_to(root / SITE).as_posix()] = short(text)
    return found


def _alone(root: Path) -> list[str]:
    """List the files that are replayed each for itself."""
    paths = [path for pattern in ALONE for path in sorted(root.glob(pattern))]
    return [path.relative_to(root).as_posix() for path in paths]


def _outcomes(folder: Path) -> dict[str, dict]:
    """Return what the cells of specimens printed when they were recorded."""
    path = folder / clinic.RECORDS
    return json.loads(path.read_text("utf8")) if path.is_file() else {}


def _of_commands(tree: Tree, commands: list[records.Command]) -> str:
    """Hash the programs that some commands run, and what these printed."""
    names, texts = {"allranks/launch/__init__.py"}, []
    for command in commands:
        for module in re.findall(r"-m (allranks[.\w]*)", command.line):
            names.add(f"{module.replace('.', '/')}/__main__.py")
        for name in FILE.findall(command.line):
            names |= {name, f"book/_examples/{name}"}
        record = tree.root / "book" / "_runs" / command.record
        texts += [command.line, record.read_text("utf8") if record.is_file() else ""]
    return tree.digest(filter(tree.exists, names), *texts)


def load(root: Path) -> dict[str, dict]:
    """Read the recorded replays, by name: digest, date and version of torch."""
    path = root / DATA
    return json.loads(path.read_text("utf8")) if path.is_file() else {}


def write(root: Path, passed: dict[str, str]) -> None:
    """Record replays that went well, and drop the records of what is gone.

    Args:
        root: the tree.
        passed: the digests of their inputs, by name.
    """
    now = digests(root)
    facts = {"date": date.today().isoformat(), "torch": version("torch")}
    with (root / DATA).open("a+") as file:  # several processes may write at once
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        kept = json.loads(file.read() or "{}")
        kept |= {name: {"digest": passed[name], **facts} for name in passed}
        built = (root / SITE).is_dir()  # else nothing is known of its pages
        gone = {n for n in kept.keys() - now.keys() if built or n[-5:] != ".html"}
        kept = {name: kept[name] for name in sorted(kept.keys() - gone)}
        file.seek(0)
        file.truncate()
        lines = [f" {json.dumps(n)}: {json.dumps(facts)}" for n, facts in kept.items()]
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
