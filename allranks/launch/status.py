"""A line in a notebook that counts the seconds while something runs in silence."""

import contextvars
import sys
import threading
import time
from typing import Self


class Status:
    """Shows what runs and for how long, from the second second on; then takes it back.

    A context manager. Only a notebook with a reader before it shows anything: what is
    executed for a file shall find results alone.

    Args:
        what: words for what runs.
    """

    def __init__(self, what: str) -> None:
        self._what, self._over = what, threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        ipython = sys.modules.get("IPython")
        kernel = getattr(ipython and ipython.get_ipython(), "kernel", None)
        if getattr(kernel, "_allow_stdin", False):
            # The context says to which cell the line belongs.
            run, args = contextvars.copy_context().run, (self._count,)
            self._thread = threading.Thread(target=run, args=args, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _count(self) -> None:
        from IPython.display import display

        began, area = time.monotonic(), None
        self._over.wait(1)
        while not self._over.wait(1):
            seconds = time.monotonic() - began
            bundle = {"text/plain": f"({self._what}: {seconds:.0f} s)"}
            if area is None:
                area = display(bundle, raw=True, display_id=True)
            else:
                area.update(bundle, raw=True)
        if area is not None:
            area.update({"text/plain": ""}, raw=True)
