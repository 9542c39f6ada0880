"""Run the slowest test files first, and make the processes that tests start cheaper.

Each worker takes the next file when it has finished one. If a slow file came last, all
other workers would wait for it. This is also why ``make test`` keeps xdist from sorting
files by their number of tests. The files of some folders share what is expensive to
start, so one worker takes them all.
"""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

from book._tools.browser import MISSING, find

FIRST = [  # ordered by time, which make test reports, not by the number of tests
    "tests/book/test_commands.py",
    "tests/allranks/live/test_faults.py",
    "tests/lab/",
    "tests/book/test_paper.py",
    "tests/test_ch5_ddp.py",
    "tests/test_ch5_ddp_spawn.py",
    "tests/test_exercises.py",
    "tests/book/test_pages.py",
    "tests/book/explorables/",
    "tests/clinic/test_live.py",
    "tests/clinic/test_launched.py",
]
CPU_BUILD = "it shows what a CPU build of torch says, and this is a CUDA build"
GROUPS = "tests/lab/", "tests/book/explorables/"  # each is run by one worker


def cuda_build() -> bool:
    """Tell whether torch was built for CUDA: some errors have other words there."""
    import torch

    return torch.backends.cuda.is_built()


def pytest_xdist_make_scheduler(config, log):
    """Give the files of a group to one worker, and any other file to the next."""
    if config.getvalue("dist") != "loadfile":
        return None

    class ByGroup(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            groups = (group for group in GROUPS if nodeid.startswith(group))
            return next(groups, None) or super()._split_scope(nodeid)

    return ByGroup(config, log)


def pytest_collection_modifyitems(items) -> None:
    """Move the slow files to the front; otherwise keep the order of the tests."""
    places = {name: place for place, name in enumerate(FIRST)}

    def place(item) -> int:
        name = item.nodeid.partition("::")[0]
        name = next((group for group in GROUPS if name.startswith(group)), name)
        return places.get(name, len(FIRST))

    items.sort(key=place)
    for item in items:
        cell = getattr(item, "cell", None)  # of a notebook
        if cell and "cpu-build" in cell.metadata.get("tags", []) and cuda_build():
            item.add_marker(pytest.mark.skip(reason=CPU_BUILD))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Let all tests that miss a browser say so in one line of the summary."""
    report = yield
    if report.skipped and MISSING in str(report.longrepr):
        report.longrepr = "tests/book/conftest.py", 0, MISSING
    return report


def pytest_configure(config) -> None:
    """Make all processes of the tests start cheaper, xdist's workers included.

    CI does not begin without a browser: a skip would look like a pass there.
    """
    if os.environ.get("CI") == "true" and not find():
        raise pytest.UsageError(MISSING)
    start = str(Path(__file__).parent / "start")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if start not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [start, *paths]))
    if start not in sys.path:
        sys.path.append(start)
    # launch() forks torchrun from a server that all tests share: tests/start/forks.py.
    os.environ.setdefault("ALLRANKS_POPEN", "forks:popen")
    if "ALLRANKS_FORKS" not in os.environ:
        folder = tempfile.mkdtemp(prefix="allranks-forks-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ["ALLRANKS_FORKS"] = f"{folder}/{os.getpid()}-server"
    # Live ranks that train on digits would import it one by one, a second each.
    os.environ.setdefault("ALLRANKS_PRELOAD", "sklearn.datasets huge_pages")
    os.environ["ALLRANKS_HUGE_PAGES"] = str(os.getpid())
    # With several workers on two cores, a second thread only waits for a core, and
    # a thread that waits would spin.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # A job in a shell's background ignores Ctrl-C, and so do the processes it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
