"""Run the tests that a change touches, as far as a minute allows: ``make quick``.

A test is touched if something that it reads has changed since it last passed. Tests
that take too long are left out, and named. CI runs all of them.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.quick.inputs import OWN, ROOT, Tree
from tests.quick.plugin import ONLY, load

WORKERS = 3
BUDGET_S = 60.0  # summed over all workers; on two cores it takes half of that
NEW_S = 10.0  # the guess for a file of tests that has never passed here


def choose(touched: dict[str, float], budget: float) -> set[str]:
    """Return the tests that fit into a budget, taking the shortest files first.

    Tests that read one page, case or exercise each come before all others, because a
    touched one is about the very file that was edited.

    Args:
        touched: seconds by test. The first test of a file includes what it does for
            all of them, such as starting a browser.
        budget: seconds.
    """
    files: Counter[str] = Counter()
    for name, seconds in touched.items():
        files[name.partition("::")[0]] += seconds
    chosen, spent = set(), 0.0
    order = sorted(files, key=lambda name: (name not in OWN, files[name]))
    for test_file in order:
        if spent + files[test_file] <= budget:
            spent += files[test_file]
            chosen.add(test_file)
    return {name for name in touched if name.partition("::")[0] in chosen}


def report(touched: dict[str, float], chosen: set[str], total: int) -> str:
    """Say how many tests run, and which files of tests are left out."""
    text = f"{len(touched)} of {total} tests are touched; {len(chosen)} of them run now"
    out: Counter[str] = Counter()
    for name, seconds in touched.items():
        if name not in chosen:
            out[name.partition("::")[0]] += seconds
    if not out:
        return f"{text}."
    rows = [f"    {name} ({seconds:.0f} s)" for name, seconds in out.most_common()]
    return "\n".join([f"{text}. Left out, make test runs them:", *rows])


def main() -> int:
    """Choose and run tests, repeat what was left out; return pytest's exit code."""
    memory, tree = load(), Tree()
    if not memory["tests"]:
        raise SystemExit("No test has passed here yet: make test runs all of them.")
    touched = {}
    for name, (state, seconds) in memory["tests"].items():
        test_file = name.partition("::")[0]
        now = tree.state(name, memory["reads"].get(test_file, ()))
        if test_file in tree.files and now != state:
            touched[name] = seconds
    known = {name.partition("::")[0] for name in memory["tests"]}
    new = {f for f in tree.files if _is_tested(f)} - known
    touched |= dict.fromkeys(new, NEW_S)  # a file's name stands for all of its tests
    chosen = choose(touched, BUDGET_S)
    said = report(touched, chosen, len(memory["tests"]) + len(new))
    print(said, flush=True)
    files = sorted({name.partition("::")[0] for name in chosen})
    if not files or "--list" in sys.argv:
        return 0
    with tempfile.NamedTemporaryFile("w", suffix=".json") as only:
        json.dump({name: name in chosen for name in memory["tests"]}, only)
        only.flush()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.quick.plugin"]
        if len(files) > 1:
            command += ["-n", str(min(WORKERS, len(files))), "--dist", "loadfile"]
        command += files
        env = os.environ | {ONLY: only.name}
        code = subprocess.run(command, cwd=ROOT, env=env).returncode
    if len(chosen) < len(touched):
        print(said)
    return code


def _is_tested(name: str) -> bool:
    """Tell whether pytest collects a file."""
    notebook = name.startswith("notebooks/") and name.endswith(".ipynb")
    return notebook or bool(re.fullmatch(r"tests/(?:.*/)?test_\w+\.py", name))


if __name__ == "__main__":
    sys.exit(main())
