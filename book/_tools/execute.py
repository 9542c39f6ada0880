"""Re-execute notebooks, the pages' commands and specimens; write what they print.

    python book/_tools/execute.py                          # all of them
    python book/_tools/execute.py notebooks/ch5_ddp.ipynb book/ch5_ddp.md
    python book/_tools/execute.py --check                  # run nothing, look only

A second run writes the same bytes, since a record whose text differs only in its
timings is left as it is. book/_data/status.json says when each file ran, and how it
ended, and book/_data/replayed.json with which inputs each was run last.
"""

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # for book._ext and book._tools

from allranks import clinic  # noqa: E402
from allranks.clinic import errata  # noqa: E402
from allranks.clinic.play import play  # noqa: E402
from book._ext.runs import executed, inputs, records, replayed  # noqa: E402
from book._tools import commands, notebooks  # noqa: E402

RUNS = ROOT / "book" / "_runs"


def record(page: Path) -> set[str]:
    """Run a page's commands, write the records that changed, and return all names."""
    names, runs = set(), scripts(page)
    start = time.monotonic()
    try:
        for command, output in commands.run_page(page):
            seconds, start = time.monotonic() - start, time.monotonic()
            for name, run in runs.items():
                if name in command.line:
                    run.add(seconds, command.line, output)
            names.add(command.record)
            try:
                if commands.same(command, records.read(RUNS, command), output):
                    continue
            except LookupError:
                pass
            records.write(RUNS, command, output)
    except BaseException:  # after a timeout or an interrupt, too, it has not run
        for run in runs.values():
            run.outcome = executed.FAILED
        raise
    finally:
        for run in runs.values():
            run.write(ROOT)
    return names


def scripts(page: Path) -> dict[str, executed.Run]:
    """Return a run, about to begin, for each of its own scripts that a page starts."""
    lines = "\n".join(c.line for c in records.commands(page.read_text("utf8")))
    names = set(re.findall(r"\bscripts/(\w+\.py)", lines))
    own = f"{page.stem.partition('_')[0]}_"
    paths = [ROOT / "scripts" / name for name in sorted(names) if name.startswith(own)]
    return {path.name: executed.Run.of(ROOT, path) for path in paths}


def record_specimen(path: Path) -> str:
    """Play a specimen's cells, record how they ended, and return what they printed."""
    specimen = (clinic if path.parent.name == "clinic" else errata).read(path)
    if specimen.fields["runs on"] == clinic.QUOTED:
        return ""
    outcomes = {cell: play(specimen, cell) for cell in specimen.cells}
    for outcome in outcomes.values():
        if trace := commands.machine_trace(outcome.text):
            raise ValueError(f"{path.name} printed what only this machine has: {trace}")
    clinic.record(specimen, outcomes)
    return "\n".join(outcome.text for outcome in outcomes.values())


def record_notebook(path: Path) -> str:
    """Execute a notebook, and return what its cells printed."""
    name = path.relative_to(ROOT).as_posix()
    same = executed.verdict(ROOT, name, executed.load(ROOT)) == executed.GOOD
    notebooks.execute(path, timings=not same)  # else each run would write a new file
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(notebooks.plain(cell.get("outputs", [])) for cell in cells)


def watched(path: Path, play_it: Callable[[Path], object]) -> None:
    """Run a notebook or specimen, and record when, how long, and how it ended."""
    run, start = executed.Run.of(ROOT, path), time.monotonic()
    code = inputs.code(path)
    try:
        output = play_it(path)
        if path.suffix == ".py":
            output = ""  # a specimen skips nothing, even if it prints "skipped"
        run.add(time.monotonic() - start, code, output)
    except BaseException:
        run.add(time.monotonic() - start, code)
        run.outcome = executed.FAILED
        raise
    finally:
        run.write(ROOT)


def main(argv: list[str] | None = None) -> None:
    """Execute or check what the command line names: by default everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="of any of the three")
    parser.add_argument("--check", action="store_true", help="run nothing, look only")
    options = parser.parse_args(argv)
    kinds = "notebooks/*.ipynb", "book/*.md", "errata/*.py", "clinic/*.py"
    everything = [path for kind in kinds for path in sorted(ROOT.glob(kind))]
    files = [path.resolve() for path in options.files] or everything
    problems, used, good = [], set(), set()
    for path in files:
        start = time.monotonic()
        try:
            if path.suffix == ".md":
                used |= set() if options.check else record(path)
            elif path.suffix == ".py":
                _ = options.check or watched(path, record_specimen)
            elif options.check:
                problems += notebooks.check(path)
            else:
                watched(path, record_notebook)
            good.add(path.relative_to(ROOT).as_posix())
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            problems.append(str(error))
        if not options.check:
            print(f"{time.monotonic() - start:6.1f} s  {path.name}", flush=True)
    if not options.check:  # what was recorded needs no replay
        now = replayed.digests(ROOT)
        replayed.write(ROOT, {name: now[name] for name in good & now.keys()})
    if not (options.files or options.check or problems):
        for path in RUNS.glob("*.txt"):
            if path.name not in used:
                path.unlink()  # the record of a command that no page has any more
    if problems:
        if options.check:
            problems.append("make notebooks writes what is right")
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
