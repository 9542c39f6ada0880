"""Find Chromium, which draws, prints and measures the book's pages, or install it.

python book/_tools/browser.py  # what "make browser" runs, and "make test" first
"""

import os
import shutil
import subprocess
import sys
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
CACHES = "~/.cache/ms-playwright", "~/Library/Caches/ms-playwright"
MISSING = "no Chromium to look at the pages with: make browser installs it"


def find() -> str | None:
    """Return the path of Chromium: the system's, or the user's; None without one."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found or Path(MAC).exists():
        return found or MAC
    own = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    for folder in map(Path, [own] if own else map(os.path.expanduser, CACHES)):
        pattern = "chromium_headless_shell-*/*/*headless?shell"
        if paths := sorted(folder.glob(pattern)):
            return str(paths[-1])  # the newest
    return None


def install() -> str | None:
    """Install Chromium unless there is one; return its path, or None if it failed.

    The package manager needs root. Anybody else gets one in a folder of their own.
    """
    if found := find():
        return found
    print("Installing Chromium, which looks at the pages ...", flush=True)
    if shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], stdout=subprocess.DEVNULL)
        command = ["apt-get", "install", "-y", "-qq"]
        for name in NAMES[:2]:  # a distribution may not know the first
            if not subprocess.run([*command, name], capture_output=True).returncode:
                break
    else:
        command = [sys.executable, "-m", "playwright", "install", NAMES[0]]
        subprocess.run(command, stdout=subprocess.DEVNULL)
    return find()


if __name__ == "__main__":
    if not install():
        sys.exit(
            "Chromium could not be installed, so no test will look at the pages: "
            f"install one of {', '.join(NAMES[:4])}, and put it on PATH"
        )
