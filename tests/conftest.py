"""The order of the test files, those that take longest first; how processes start.

Each worker takes the next file when it is done. Were a slow one the last, the others
would wait for it. So ``make test`` also keeps xdist from sorting by number of tests.
"""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

FIRST = [  # minutes, not tests, decide; make test's report has them
    "tests/book/test_commands.py",
    "tests/allranks/live/test_faults.py",
    "tests/lab/test_lab.py",
    "tests/book/test_paper.py",
    "tests/test_ch5_ddp.py",
    "tests/test_ch5_ddp_spawn.py",
    "tests/test_exercises.py",
    "tests/book/test_pages.py",
    "tests/clinic/test_live.py",
    "tests/clinic/test_launched.py",
]


def pytest_collection_modifyitems(items) -> None:
    """Sort by file only: within one, and among the rest, the order stays."""
    places = {name: place for place, name in enumerate(FIRST)}

    def place(item) -> int:
        return places.get(item.nodeid.partition("::")[0], len(FIRST))

    items.sort(key=place)


def pytest_configure(config) -> None:
    """Let what the tests start, xdist's workers among it, waste less of two cores."""
    start = str(Path(__file__).parent / "start")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if start not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [start, *paths]))
    if start not in sys.path:
        sys.path.append(start)
    # launch() has torchrun forked from one server of all tests: tests/start/forks.py.
    os.environ.setdefault("ALLRANKS_POPEN", "forks:popen")
    if "ALLRANKS_FORKS" not in os.environ:
        folder = tempfile.mkdtemp(prefix="allranks-forks-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ["ALLRANKS_FORKS"] = f"{folder}/{os.getpid()}-server"
    # With several workers on two cores, a second thread only waits for a core, and
    # a thread that waits would spin.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # In a shell's background Ctrl-C is ignored, and by all that is started there.
    signal.signal(signal.SIGINT, signal.default_int_handler)
