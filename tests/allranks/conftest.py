"""A real Jupyter kernel for the tests, and a check that finds orphans."""

import time

import psutil
import pytest
from jupyter_client.manager import start_new_kernel


class Kernel:
    """One Jupyter kernel, driven in the way of a front end."""

    def __init__(self):
        self.manager, self.client = start_new_kernel(kernel_name="python3")
        self.process = psutil.Process(self.manager.provisioner.pid)

    def start(self, code: str) -> str:
        """Send a cell and return its message id at once."""
        return self.client.execute(code)

    def finish(self, msg_id: str, timeout: float = 60) -> tuple[str, str]:
        """Wait for a cell to end; return what it printed, and the text of its error."""
        printed, error = "", ""
        while True:
            message = self.client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed += content["text"]
            elif kind == "error":
                error = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                return printed, error

    def run(self, code: str) -> tuple[str, str]:
        """Run a cell to its end; return what it printed, and the text of its error."""
        return self.finish(self.start(code))

    def descendants(self) -> list[psutil.Process]:
        """Return every process that the kernel has started, ranks included."""
        return self.process.children(recursive=True)

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel():
    """Yield a fresh kernel with the extension loaded."""
    kernel = Kernel()
    kernel.run("%load_ext allranks")
    yield kernel
    kernel.close()


@pytest.fixture(scope="module")
def shared_kernel():
    """Yield one kernel, with the extension loaded, for a whole module."""
    kernel = Kernel()
    kernel.run("%load_ext allranks")
    yield kernel
    kernel.close()


@pytest.fixture
def all_gone():
    """Return a check that fails if one of the processes outlives the deadline."""

    def check(processes: list[psutil.Process], seconds: float = 10) -> None:
        assert processes, "nothing was started, so nothing is proved"
        deadline = time.monotonic() + seconds
        alive = processes
        while alive and time.monotonic() < deadline:
            alive = [p for p in alive if _is_alive(p)]
            time.sleep(0.05)
        left = [" ".join(p.cmdline())[:80] for p in alive if _is_alive(p)]
        assert not left, f"still alive after {seconds} s: {left}"

    return check


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
