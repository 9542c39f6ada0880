"""Settings of all tests: a browser is needed where CI runs, threads are few."""

import gc
import os
import signal

import pytest

from book._tools.browser import MISSING, find

gc.disable()  # collection imports torch and much else, none of which is garbage
CPU_BUILD = "it shows what a CPU build of torch says, and this is a CUDA build"


def cuda_build() -> bool:
    """Tell whether torch was built for CUDA: some errors have other words there."""
    import torch

    return torch.backends.cuda.is_built()


def pytest_collection_modifyitems(items) -> None:
    """Skip the notebooks' cells that a CUDA build answers in other words."""
    for item in items:
        cell = getattr(item, "cell", None)  # of a notebook
        if cell and "cpu-build" in cell.metadata.get("tags", []) and cuda_build():
            item.add_marker(pytest.mark.skip(reason=CPU_BUILD))


def pytest_collection_finish() -> None:
    """Leave what was imported out of each later search for garbage."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Let all tests that miss a browser say so in one line of the summary."""
    report = yield
    if report.skipped and MISSING in str(report.longrepr):
        report.longrepr = "tests/book/conftest.py", 0, MISSING
    return report


def pytest_configure() -> None:
    """Begin only with a browser in CI, where a skip would look like a pass."""
    if os.environ.get("CI") == "true" and not find():
        raise pytest.UsageError(MISSING)
    # With several workers on two cores, a second thread only waits for a core, and
    # a thread that waits would spin.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # A job in a shell's background ignores Ctrl-C, and so do the processes it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
