"""Time the README's two commands on a fresh clone, until the book is built."""

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from allranks.base.paths import ROOT

FIRST_COLLECTIVE = (
    "from allranks import Ranks\n"
    "with Ranks(2) as ranks:\n"
    "    print(ranks.run('x = torch.ones(1); dist.all_reduce(x); x.item()'))\n"
)


def timed(*command: str, cwd: Path) -> float:
    """Run a command that has to succeed; return its seconds."""
    start = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def run() -> dict:
    """Clone the committed tree and do what a reader would, in about 7 minutes."""
    with tempfile.TemporaryDirectory(prefix="allranks-fresh-") as folder:
        clone = Path(folder, "allranks")
        start = time.perf_counter()
        timed("git", "clone", "-q", str(ROOT), str(clone), cwd=ROOT)
        setup_s = timed("make", ".venv/.ready", cwd=clone)
        build_s = timed("make", "book", cwd=clone)
        book_s = time.perf_counter() - start
        python = str(clone / ".venv/bin/python")
        collective_s = timed(python, "-c", FIRST_COLLECTIVE, cwd=clone)
        again = [timed("make", "book", cwd=clone) for _ in range(5)]
        page = clone / "book" / "ch5_ddp.md"
        edits = []
        for n in range(3):
            page.write_text(page.read_text("utf8") + f"\nEdit {n}.\n", "utf8")
            edits.append(timed("make", "book", cwd=clone))
        subprocess.run(["git", "checkout", "-q", "."], cwd=clone, check=True)
        start = time.perf_counter()
        timed("make", "test", cwd=clone)
        test_s = time.perf_counter() - start
        shutil.rmtree(clone / ".venv")
    return {
        "cores": os.cpu_count(),
        "book_cold_s": book_s,
        "setup_s": setup_s,
        "build_s": build_s,
        "first_collective_s": collective_s,
        "book_again_s": statistics.median(again),
        "book_edit_s": statistics.median(edits),
        "test_s": test_s,
    }


def report(f: dict) -> str:
    """Return the figures as text, each beside its target."""
    return "\n".join(
        [
            f"clone to built book           {f['book_cold_s']:.0f} s (target 150): "
            f"installing {f['setup_s']:.0f} s, ours {f['build_s']:.0f} s (target 20)",
            f"then to a live collective     {f['first_collective_s']:.1f} s",
            f"make book, nothing changed    {f['book_again_s']:.1f} s (target 3)",
            f"make book, a sentence edited  {f['book_edit_s']:.1f} s (target 6)",
            f"make test                     {f['test_s']:.0f} s (target 300)",
        ]
    )
