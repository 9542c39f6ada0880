"""Rehearse scripts that nobody here wrote, and say how each ended.

``CHECKOUTS=FOLDER python tests/bench third_party`` takes each repository of
scripts.json from FOLDER/OWNER+NAME (a clone, or a bare one) or clones it into there,
unpacks the commit that the list names, and runs its scripts in a rehearsal of two GPUs.
Nothing in them is changed. The libraries that they import have to be on PYTHONPATH;
stand_ins/ puts tiny data in place of what they would download.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

from allranks.base.paths import ROOT

HERE = Path(__file__).parent
LIST, DATA = HERE / "scripts.json", HERE / "results.json"
SECONDS = 240  # that a script may take
OWN = re.compile(r'^\s*File "[^"]*/allranks/(?!rehearse/child\.py)', re.MULTILINE)
RAN, AS_ON_GPUS, REFUSED = "ran", "failed as on GPUs", "refused"
OURS, HANGS, OTHER = "traceback of ours", "hangs", "failed"
GOOD = RAN, AS_ON_GPUS, REFUSED
KEYS = "repository", "folder", "command"


def judge(exit_code: int, output: str, script: dict) -> str:
    """Say how a script ended.

    Args:
        exit_code: the rehearsal's.
        output: all that was printed.
        script: of the list. If it cannot end well, ``fails`` or ``refused`` is a
            pattern that has to be in the output, and ``why`` says why that is right.
    """
    if exit_code == 124:
        return HANGS
    if exit_code == 0 and not re.search("^Failed$", output, re.MULTILINE):
        return RAN  # and no child whose failure the script does not look at
    for key, end in (("fails", AS_ON_GPUS), ("refused", REFUSED)):
        if key in script and re.search(script[key], output):
            return end
    return OURS if OWN.search(output) else OTHER


def checkout(entry: dict, checkouts: Path, folder: Path) -> Path:
    """Unpack what an entry needs of its repository; return where its scripts are.

    Raises:
        subprocess.CalledProcessError: if git cannot clone it, or lacks the commit.
    """
    source = checkouts / entry["repository"].replace("/", "+")
    if not source.exists():
        url = f"https://github.com/{entry['repository']}"
        subprocess.run(["git", "clone", "-q", "--bare", url, source], check=True)
    for part in {entry["folder"], entry.get("path", entry["folder"])}:
        tree = entry["commit"] if part == "." else f"{entry['commit']}:{part}"
        git = ["git", "-C", source, "archive", f"--prefix={part}/", tree]
        packed = subprocess.run(git, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "x", "-C", folder], input=packed, check=True)
    for name, words in entry.get("files", {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(array("H", [n % words for n in range(4096)]).tobytes())
    return folder / entry["folder"]


def rehearse(entry: dict, script: dict, checkouts: Path) -> str:
    """Run a script of an entry in a new checkout; return how it ended."""
    with tempfile.TemporaryDirectory(prefix="third-party-") as folder:
        where = checkout(entry, checkouts, Path(folder))
        paths = [str(HERE / "stand_ins"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        if "path" in entry:
            paths.append(str(Path(folder, entry["path"])))
        options = f"--gpus {script.get('gpus', 2)} --timeout {SECONDS} --watch 30"
        words = shlex.split(
            f"-m allranks.rehearse --full {options} {script['command']}"
        )
        done = subprocess.run(
            [sys.executable, *words],
            cwd=where,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    output = done.stdout.decode(errors="replace")
    end = judge(done.returncode, output, script)
    if end not in GOOD:
        print(output[-3000:], flush=True)
    return end


def run() -> dict:
    """Rehearse the scripts of the list, in half an hour.

    ``ONLY=TEXT`` takes those whose repository or command contains a text; what is known
    of the others stays.

    Raises:
        SystemExit: if CHECKOUTS names no folder.
    """
    checkouts = Path(os.environ.get("CHECKOUTS", ""))
    if not os.environ.get("CHECKOUTS") or not checkouts.is_dir():
        raise SystemExit("CHECKOUTS=FOLDER says where the repositories are, or may be")
    known = {}
    if DATA.is_file():
        stored = json.loads(DATA.read_text("utf8"))["third_party"]["scripts"]
        known = {tuple(one[key] for key in KEYS): one["end"] for one in stored}
    ends = []
    for entry in json.loads(LIST.read_text("utf8")):
        for script in entry["scripts"]:
            key = entry["repository"], entry["folder"], script["command"]
            if os.environ.get("ONLY", "") in " ".join(key) or key not in known:
                known[key] = rehearse(entry, script, checkouts)
                print(f"{' '.join(key)}: {known[key]}", flush=True)
            ends.append(dict(zip(KEYS, key, strict=True), end=known[key]) | script)
            stored = [dict(zip(KEYS, k, strict=True), end=known[k]) for k in known]
            told = {"third_party": {"scripts": stored}}  # so that a break loses none
            DATA.write_text(json.dumps(told), "utf8")
    good = sum(one["end"] in GOOD for one in ends)
    first = sum(one["end"] in GOOD and "cured" not in one for one in ends)
    return {
        "scripts": ends,
        "num_scripts": len(ends),
        "num_repositories": len({one["repository"] for one in ends}),
        "num_good": good,
        "num_ran": sum(one["end"] == RAN for one in ends),
        "percent": 100 * good / len(ends),
        "first_percent": 100 * first / len(ends),
    }


def report(found: dict) -> str:
    """Return a table of all scripts in Markdown, and the sums."""
    rows = [
        f"| {one['repository']} {one['folder']} | `{one['command']}` | {one['end']} | "
        f"{one.get('why', '')}{one.get('cured', '')} |"
        for one in found["scripts"]
    ]
    head = ["| repository | command | how it ended | |", "|---|---|---|---|"]
    sums = (
        f"{found['num_scripts']} scripts of {found['num_repositories']} repositories: "
        f"{found['num_ran']} ran, {found['num_good']} ended as they should "
        f"({found['percent']:.0f} %; at the first try {found['first_percent']:.0f} %)"
    )
    return "\n".join([*head, *rows, "", sums])
