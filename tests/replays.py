"""Replay what the book recorded: all that changed, and of the rest a tenth in turn.

What is replayed together is named by a file: a notebook, a specimen, a page
(book/_ext/runs/replayed.py lists them). Tests say so: ``@pytest.mark.replay(NAME)``.
A run of the whole suite takes each name whose inputs have changed since it last passed,
and one of ten parts of the others, chosen by the commit: ten commits in a row replay
everything. What is not in turn is deselected, and counted in the header. Whoever names
files of tests gets all that is in them.
"""

import hashlib
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from book._ext.runs import replayed

PASSED = "replays/passed"  # in pytest's cache: digests that passed on this machine
PARTS = 10
BROWSERS = {"browser", "empty_tab"}


def part(name: str) -> int:
    """Return which of the ten parts a name belongs to, for ever."""
    return hashlib.sha256(name.encode()).digest()[0] % PARTS


def turn(root: Path) -> int:
    """Return the part that is in turn: commits count, or without history their hash."""
    shallow = (root / ".git" / "shallow").exists()  # as CI may clone
    count = "rev-list", "--count", "--first-parent"  # a merge is one step
    command = ["git", *(["rev-parse"] if shallow else count), "HEAD"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        return 0
    return int(done.stdout, 16 if shallow else 10) % PARTS


def due(
    now: dict[str, str], recorded: dict[str, dict], here: dict[str, str], turn: int
) -> tuple[set[str], set[str]]:
    """Return what has changed since it was replayed, and what of the rest is in turn.

    Args:
        now: the digest of each name's inputs.
        recorded: the replays that the repository records, by name.
        here: what this machine replayed since: digests, or "" if that failed.
        turn: the part that is in turn.
    """

    def has_changed(name: str) -> bool:
        known = recorded.get(name, {}).get("digest"), here.get(name)
        return here.get(name) == "" or now[name] not in known

    changed = set(filter(has_changed, now))
    return changed, {name for name in now if part(name) == turn} - changed


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says how much is replayed."""
    parser.addoption(
        "--replays",
        choices=("turn", "all"),
        help="replay what changed and a tenth of the rest, or everything; by default "
        "turn, and all of any test that is named",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose what is replayed, in the one process that reports."""
    if hasattr(config, "workerinput"):  # a worker of xdist: it is told
        config.replays = config.workerinput["replays"]
        return
    named = config.args_source is not config.ArgsSource.TESTPATHS
    mode = config.option.replays or ("all" if named else "turn")
    config.replays = None if mode == "all" else []
    chosen = named or config.option.keyword or config.getoption("lf", False)
    ends = Ends(config, whole=not chosen)
    config.pluginmanager.register(ends)


class Ends:
    """What a run replays, how that ended, and what is to be remembered of it.

    Args:
        whole: whether nothing is left out but what is not in turn.
    """

    def __init__(self, config: pytest.Config, whole: bool) -> None:
        self.config, self.whole = config, whole
        self.now = replayed.digests(config.rootpath)
        self.cache = getattr(config, "cache", None)  # -p no:cacheprovider: no memory
        self.here = self.cache.get(PASSED, {}) if self.cache else {}
        self.good: dict[str, bool] = {}
        self.header = f"all {len(self.now)}"
        if config.replays is not None:
            number, recorded = turn(config.rootpath), replayed.load(config.rootpath)
            changed, rest = due(self.now, recorded, self.here, number)
            config.replays = sorted(changed | rest)
            others = len(self.now) - len(changed)
            self.header = f"{len(changed)} changed, {len(rest)} of {others} in turn"
            self.header += f" (part {number} of {PARTS})"

    def pytest_report_header(self) -> str:
        """Say how much is replayed."""
        return f"replays: {self.header}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node) -> None:
        """Tell a worker of xdist what to replay."""
        node.workerinput["replays"] = self.config.replays

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep how each replay ended: well, if all of its tests did that ran."""
        name = dict(report.user_properties).get("replay")
        # Neither well nor ill is a skip: what this machine lacks stays lacking.
        skips = report.skipped and not hasattr(report, "wasxfail")
        if name and report.failed:
            self.good[name] = False
        elif name and report.when == "call" and not skips:
            self.good.setdefault(name, True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self) -> None:
        """Remember nothing of a run in which a worker died with its test."""
        self.whole = False

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Remember what was replayed; a run of everything records it for all."""
        stopped = exitstatus > 1 or session.shouldfail
        if not self.whole or stopped or self.config.option.collectonly:
            return
        passed = {name: self.now[name] for name, good in self.good.items() if good}
        failed = dict.fromkeys(self.good.keys() - passed.keys(), "")
        if self.cache:
            self.cache.set(PASSED, self.here | passed | failed)
        if self.config.replays is None:
            replayed.write(self.config.rootpath, passed)


def name_of(item: pytest.Item) -> str | None:
    """Return the name under which a test is replayed, if it is.

    The marker's text may name the test's parameters: ``clinic/{case.slug}.py``.
    """
    file = item.nodeid.partition("::")[0]
    if marker := item.get_closest_marker("replay"):
        params = item.callspec.params if hasattr(item, "callspec") else {}
        return marker.args[0].format(**params)
    alone = any(fnmatch(file, pattern) for pattern in replayed.ALONE)
    return file if alone or file.endswith(".ipynb") else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list) -> None:
    """Mark each test by its kind, leave out replays not due, put the others first."""
    first, then, left_out = [], [], []
    for item in items:
        name = name_of(item)
        if name:
            item.user_properties.append(("replay", name))
        kind = "replay" if name else "unit"
        if BROWSERS & set(getattr(item, "fixturenames", ())):
            kind = "browser"
        kind = "lab" if item.nodeid.startswith("tests/lab/") else kind
        item.add_marker(kind)
        due = name is None or config.replays is None or name in config.replays
        (left_out if not due else first if name else then).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = first + then
