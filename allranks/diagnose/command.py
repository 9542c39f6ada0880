"""Find the failure that a log shows: ``python -m allranks.diagnose LOG ...``.

Without a file it reads what is piped into it, and passes that on as it comes::

    torchrun train.py 2>&1 | python -m allranks.diagnose

Instead of a log, a sentence may say what you see, in English or Chinese; the answer
then names cases that it may be. --ask finds them by questions::

    python -m allranks.diagnose "my training hangs at the end of the epoch"

stdout: what comes through the pipe, byte for byte (none of it with --quiet; with --json
it goes to stderr), then the answer. stderr: complaints; also the answer, if stdout is
closed or full. Ctrl-C ends the job, and the answer follows; a second one does not wait
for the job's end. Not more than 256 MiB of a log are kept, of a pipe the last ones.

Exit code 0: something was found; 1: not known, if only by description, or ended by
Ctrl-C; 2: a log could not be read, or the answer not be written. For the job's own:
set -o pipefail.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator

from allranks import clinic
from allranks.base.paths import ROOT
from allranks.clinic.specimens import Specimen
from allranks.diagnose.answers import (
    about_case,
    about_page,
    about_suspect,
    likely,
    nothing,
    show,
    stopped,
    unknown,
)
from allranks.diagnose.described import candidates, symptoms, table
from allranks.diagnose.reading import Received, complain, decoded, read, receive
from allranks.diagnose.suspects import SHOWN, diagnose, ended
from allranks.diagnose.text import Log

CASES = ROOT / "clinic"
_SPOKEN = re.compile(r"[A-Za-z0-9']{2,}|[\u4e00-\u9fff]{2}")
_PATH = re.compile(r"[./~\\]|[A-Za-z]:\\")  # how a path begins
_HAN = re.compile(r"[\u4e00-\u9fff]")
_FILE = re.compile(r"\.\w{1,5}$")
LONG = 5  # words of a sentence that has a slash or ends with a file's name
RULE = "--- python -m allranks.diagnose:"
FIRST = "What do you see?"
NO_TERMINAL = (
    "--ask asks in a terminal, and stdin is none: give a sentence that says what you "
    'see instead, as in python -m allranks.diagnose "it hangs at the end of the epoch"'
)


def options(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("python -m allranks.diagnose", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    text = "a file; - is stdin; or a sentence that says what you see"
    parser.add_argument("logs", nargs="*", metavar="LOG", help=text)
    parser.add_argument("--ask", action="store_true", help="find cases by questions")
    parser.add_argument("--json", action="store_true", help="for tools")
    text = "do not pass on what is piped in"
    parser.add_argument("--quiet", action="store_true", help=text)
    chosen = parser.parse_args(arguments)
    if chosen.ask and chosen.logs:
        parser.error("--ask asks, and reads no log")
    return chosen


def main(arguments: list[str] | None = None) -> int:
    """Read the logs, and print what they show.

    Args:
        arguments: of the command line; None for those of this process.
    Returns:
        The exit code.
    """
    chosen, came = options(arguments), Received()
    if chosen.ask:
        return ask(clinic.folder(CASES))
    names = chosen.logs or ["-"]
    try:
        if "-" in names:
            target = sys.stderr if chosen.json else sys.stdout
            if target is None and not chosen.quiet:
                complain("stdout is closed: the answer follows on stderr")
            came = receive(None if chosen.quiet else target)
        log, cases = Log(*(texts(name, came) for name in names)), clinic.folder(CASES)
        ends = ended(log)
        if came.ended is not None:
            # The pipe knows when Ctrl-C came; the log may not mention it at all.
            file = names.index("-")
            ends[file] = log.after(file, came.ended)
        suspects = diagnose(log, cases, ends)
    except (ValueError, SyntaxError) as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    shown = [about_suspect(log, suspect) for suspect in suspects[:SHOWN]]
    end = min(ends.values(), default=None)
    # Only a text in which no sign matches, of a job that nobody ended, may describe a
    # symptom in words.
    known = {case.slug: case for case in cases}
    none = shown or end is not None
    searched = {} if none else table(cases)
    perhaps = [
        about_page(name, *searched["pages"][name])
        if name in searched["pages"]
        else about_case(known[name])
        for name in (candidates(log, searched) if searched else [])
    ]
    if chosen.json:
        told = {"known": bool(shown), "found": shown}
        if end is not None:
            told["ended"] = {"line": log.place(end)[1], "stood_still": came.stood}
        if perhaps:
            told["candidates"] = perhaps
        text = json.dumps(told, indent=1)
    else:
        parts = [show(i, one, len(names) > 1) for i, one in enumerate(shown, 1)]
        if end is not None:
            parts.append(stopped(log, end, came, bool(shown)))
        elif perhaps:
            parts.append(likely(len(cases), len(perhaps) > 1))
            parts += [show(i, one, False) for i, one in enumerate(perhaps, 1)]
        elif not shown:
            words = "your words" in log.names
            parts.append(nothing() if words else unknown(log, len(cases)))
        if came.passed:
            parts.insert(0, RULE if came.fresh else f"\n{RULE}")
        text = "\n\n".join(parts)
    if not answer(text, came.broken):
        return 2
    return 0 if shown else 1


def texts(name: str, came: Received) -> tuple[str, Iterator[str]]:
    """Return a log's name, and its text in parts."""
    if name == "-":
        return "stdin", decoded(came.taken(), "stdin")
    if spoken(name) and not os.path.exists(name):
        return "your words", iter([name])
    return name, decoded(read(name), name)


def spoken(text: str) -> bool:
    """Tell whether an argument is a sentence and no file that is missing.

    A sentence has several words. One with a slash or a file's name in it has more of
    them, so that "runs/my train.log" stays a file.

    >>> spoken("loss is off by 1/world_size"), spoken("runs/my train.log")
    (True, False)
    """
    words = len(_SPOKEN.findall(text))
    if _PATH.match(text):
        return False
    if _FILE.search(text) or "/" in text or "\\" in text:
        return words >= LONG or (len(_HAN.findall(text)) >= LONG and "." not in text)
    return words >= 2


def answer(text: str, broken: bool) -> bool:
    """Print the answer, on stderr if stdout is broken, and tell whether that worked."""
    broken = broken or sys.stdout is None
    try:
        print(text, file=sys.stderr if broken else sys.stdout, flush=True)
    except BrokenPipeError:  # | head
        silence()
    except OSError as error:
        silence()
        complain(f"the answer cannot be written: {error.strerror}")
        return False
    return True


def silence() -> None:
    """Redirect stdout to the null device, into which Python flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def ask(cases: list[Specimen]) -> int:
    """Ask from question to question (--ask), and show the cases at the end.

    The questions are the tree of symptoms.toml, which the clinic's page shows, too.

    Returns:
        0 if cases were shown, 1 if it ended before, 2 without a terminal.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        complain(NO_TERMINAL)
        return 2
    known = {case.slug: case for case in cases}
    path, answered = [], 1  # the answers chosen so far, so that 0 leads back
    try:
        while True:
            here = path[-1] if path else {"ask": FIRST, "see": symptoms()["see"]}
            if "cases" in here:
                answered = 0
                for number, slug in enumerate(here["cases"].split(), 1):
                    print(f"\n{show(number, about_case(known[slug]), False)}")
                print("\n  0. back")
            else:
                print(f"\n{here['ask']}\n")
                for number, one in enumerate(here["see"], 1):
                    print(f"{number:3}. {one['answer']}")
                print(f"  0. {'back' if path else 'end'}")
            number = choose(len(here.get("see", [])))
            if number:
                path.append(here["see"][number - 1])
            elif path:
                path.pop()
            else:
                return answered
    except (EOFError, KeyboardInterrupt):
        print()
        return answered


def choose(most: int) -> int:
    """Return the number that is typed, from 0 on; ask again for any other."""
    wanted = f"a number from 0 to {most}" if most else "0, or Ctrl-D to end"
    while True:
        typed = input("> ").strip()
        if typed.isdecimal() and int(typed) <= most:
            return int(typed)
        print(f"Type {wanted}.")
