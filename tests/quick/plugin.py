"""A pytest plugin that remembers which tests passed, on which inputs, and how fast.

``make test`` writes this to ``_build/passed.json``, where ``make quick`` reads which
tests need not run again. Each worker records what Python opens and starts.
"""

import contextlib
import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.quick.inputs import ROOT, Tree

PASSED = ROOT / "_build" / "passed.json"
ONLY = "ALLRANKS_ONLY"  # names a JSON file: whether to run each test it knows


def load(path: Path = PASSED) -> dict:
    """Return what is remembered: the digest of each test's inputs, and its seconds."""
    if not path.exists():
        return {"tests": {}, "reads": {}}
    return json.loads(path.read_text("utf8"))


class Ear:
    """An audit hook that hears which files are opened and which programs started."""

    def __init__(self) -> None:
        self.reads: dict[str, set[str]] = {}
        self.file = ""  # the file of the test that runs now
        sys.addaudithook(self.hear)

    def hear(self, event: str, args: tuple) -> None:
        """Add a file to those that the tests of the current file read."""
        if not self.file or event not in ("open", "subprocess.Popen"):
            return
        words = [args[0]] if event == "open" else list(args[1] or ())
        for number, word in enumerate(words):
            if not isinstance(word, str | bytes | os.PathLike):
                continue
            name = os.fsdecode(word)
            if number and words[number - 1] == "-m":
                name = f"{ROOT}/{name.replace('.', '/')}/__main__.py"
            path = os.path.normpath(os.path.join(ROOT, name))
            if path.startswith(f"{ROOT}/"):  # x/__pycache__/y.cpython-311.pyc: x/y.py
                name = re.sub(r"__pycache__/(\w+)\..*", r"\1.py", path)
                self.reads.setdefault(self.file, set()).add(name[len(f"{ROOT}/") :])


class Memory:
    """What is to be remembered about this run."""

    def __init__(self) -> None:
        self.tree, self.ends, self.seconds = Tree(), {}, {}
        for name in self.tree.files:  # read now, as an edit may follow during the run
            self.tree.bytes(name)
        self.reads: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep how a test ended: it has failed if any of its phases has."""
        name = report.nodeid
        self.seconds[name] = self.seconds.get(name, 0) + report.duration
        self.ends[name] = self.ends.get(name, True) and not report.failed

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error) -> None:
        """Add what one of xdist's workers heard."""
        self.add(getattr(node, "workeroutput", {}).get("reads", {}))

    def add(self, reads: dict) -> None:
        """Add files to those that the tests of each file read."""
        for test_file, names in reads.items():
            self.reads.setdefault(test_file, set()).update(names)

    def write(self, path: Path = PASSED) -> None:
        """Remember what passed; forget what failed, and files that are gone."""
        old = load(path)
        reads = {k: set(v) for k, v in old["reads"].items()}
        for test_file, names in self.reads.items():
            kept = (n for n in names if n in self.tree.files)
            reads.setdefault(test_file, set()).update(kept)
        tests = old["tests"]
        for name, passed in self.ends.items():
            tests.pop(name, None)
            if passed:
                state = self.tree.state(name, reads.get(name.partition("::")[0], ()))
                tests[name] = [state, round(self.seconds[name], 3)]
        tests = {
            n: t for n, t in tests.items() if n.partition("::")[0] in self.tree.files
        }
        new = {"tests": tests, "reads": {k: sorted(v) for k, v in reads.items()}}
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(new), "utf8")
        part.replace(path)


def pytest_configure(config: pytest.Config) -> None:
    """Listen in each process that runs tests, remember in the one that reports."""
    config.ear = Ear()
    config.memory = None
    if not hasattr(config, "workerinput"):
        # Without git there is no list of files, so nothing is remembered.
        with contextlib.suppress(SystemExit, FileNotFoundError):
            config.memory = Memory()
            config.pluginmanager.register(config.memory)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Set the test file to which whatever is opened now belongs."""
    item.config.ear.file = item.nodeid.partition("::")[0]
    try:
        return (yield)
    finally:
        item.config.ear.file = ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list) -> None:
    """Deselect the tests that ``make quick`` did not choose; unknown tests run."""
    if ONLY not in os.environ:
        return
    chosen = json.loads(Path(os.environ[ONLY]).read_text("utf8"))
    keep = [i for i in items if chosen.get(i.nodeid, True)]
    config.hook.pytest_deselected(items=[i for i in items if i not in set(keep)])
    items[:] = keep


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass on what a worker heard, or write down what is to be remembered."""
    config = session.config
    reads = {k: sorted(v) for k, v in config.ear.reads.items()}
    if hasattr(config, "workeroutput"):
        config.workeroutput["reads"] = reads
        return
    if config.memory is not None:
        config.memory.add(reads)
        config.memory.write()
