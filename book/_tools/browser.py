"""Find the system's Chromium, which draws, prints and measures the book's pages."""

import shutil
from pathlib import Path

# The one without windows needs a fifth less of the processor, so it comes first.
NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"


def find() -> str | None:
    """Return the path of the system's Chromium, or None if there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or (MAC if Path(MAC).exists() else None)
