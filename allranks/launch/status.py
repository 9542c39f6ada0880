"""A line in a notebook that counts the seconds while something runs in silence."""

import sys
import time


class Status:
    """Shows what runs and for how long, and takes it back at the end.

    Only a notebook with a reader before it shows anything: what is executed for a file
    shall find results alone.

    Args:
        what: words for what runs.
    """

    def __init__(self, what: str) -> None:
        self._what, self._began, self._said = what, time.monotonic(), 0
        ipython = sys.modules.get("IPython")
        kernel = getattr(ipython and ipython.get_ipython(), "kernel", None)
        self._watched = getattr(kernel, "_allow_stdin", False)
        self._area = None

    def tell(self) -> None:
        """Show a new line each second, from the second one on."""
        seconds = int(time.monotonic() - self._began)
        if self._watched and seconds >= 2 and seconds != self._said:
            self._said = seconds
            self._show(f"({self._what}: {seconds} s)")

    def end(self) -> None:
        """Take the line back."""
        if self._area is not None:
            self._show("")

    def _show(self, text: str) -> None:
        from IPython.display import display

        bundle = {"text/plain": text}
        if self._area is None:
            self._area = display(bundle, raw=True, display_id=True)
        else:
            self._area.update(bundle, raw=True)
