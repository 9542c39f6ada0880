"""Find the failure that a log shows: ``python -m allranks.diagnose LOG ...``.

Without a file it reads what is piped into it::

    torchrun train.py 2>&1 | python -m allranks.diagnose

Exit code 0: something was found; 1: not known; 2: a log could not be read.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path
from textwrap import fill

from allranks import clinic
from allranks.diagnosis import SHOWN, Suspect, diagnose, first_error
from allranks.log_text import Log

CASES = Path(__file__).resolve().parents[1] / "clinic"
LIMIT = 256 * 2**20
WIDTH = 88
SHAPE = {"width": WIDTH, "initial_indent": "   ", "subsequent_indent": "   "}
SHAPE |= {"break_long_words": False, "break_on_hyphens": False}
EXCERPT = 150
ENDS = {
    "crash": "fails",
    "hang": "hangs",
    "silent": "silent, and wrong",
    "slow": "slow",
}
SURE = {
    "full": "",
    "maybe": "perhaps: the message has other causes, too",
    "echo": "perhaps the echo of another rank's failure: look for what came before",
}
HELP = (
    "What to do next: look at the first error in time, not the last; with several "
    "ranks, each has its own (torchrun --log-dir logs --redirects 3 --tee 3 keeps them "
    "apart). No error at all: book/app_clinic_hangs.html has the tools for a job that "
    "stands still, book/app_clinic_invariants.html for numbers that are wrong."
)


def decode(data: bytes, name: str) -> str:
    """The text of a log; Windows' UTF-16 is known by its first bytes.

    Raises:
        ValueError: if it is empty, too long or no text.
    """
    if not data.strip():
        raise ValueError(f"{name} is empty: nothing to diagnose")
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    head = data[:8192].decode("utf8", "replace")
    packed = data[:3] in (b"PK\x03", b"\x1f\x8b\x08")
    if not wide and (packed or sum(map(head.count, "\0\ufffd")) > 8 + len(head) // 10):
        raise ValueError(f"{name} is no text: give the log, unpacked")
    if len(data) > LIMIT:
        raise ValueError(
            f"{name} has more than {LIMIT >> 20} MiB: give its last part, "
            "tail -c 100M LOG | python -m allranks.diagnose"
        )
    if wide:
        return data.decode("utf-16", "replace")
    return data.decode("utf8", "replace")


def load(name: str) -> tuple[str, str]:
    """One log: its name and its text.

    Raises:
        ValueError: if it cannot be read, with a sentence that says why.
    """
    if name == "-":
        return "stdin", decode(pipe(), "stdin")
    try:
        if os.path.isdir(name):
            raise ValueError(f"{name} is a folder: give the logs in it, {name}/*.log")
        with open(name, "rb") as file:
            return name, decode(file.read(LIMIT + 1), name)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None


def pipe() -> bytes:
    """Read all that comes; Ctrl-C ends the job that is piped in here, not this."""
    if sys.stdin is None:
        raise ValueError("stdin is closed: name a log, or pipe one in")
    if sys.stdin.isatty():
        print("Paste the log, then press Ctrl-D on a line of its own.", file=sys.stderr)
    chunks, size, stopped = [], 0, False
    while size <= LIMIT:
        try:
            chunk = sys.stdin.buffer.read1(2**20)
        except KeyboardInterrupt:
            if stopped:
                raise
            stopped = True
            continue
        chunks.append(chunk)
        size += len(chunk)
        if not chunk:
            break
    return b"".join(chunks)


def found(log: Log, suspect: Suspect) -> dict:
    """What is told of a suspect, for people and for tools."""
    case = suspect.case
    matches = []
    for sign, hit in sorted(suspect.hits, key=lambda pair: pair[1].first):
        file, line = log.places[hit.first]
        begin = max(0, min(hit.begin - 30, hit.end - EXCERPT))
        text = hit.text[begin:].strip()
        cut = text[:EXCERPT] + "…" * (len(text) > EXCERPT)
        about = {"file": file, "line": line, "rank": log.rank(hit.first)}
        about |= {"text": "…" * (begin > 0) + cut, "sign": sign.pattern}
        if all(match["line"] != line or match["file"] != file for match in matches):
            matches.append(about)
    page = clinic.CLASSES[case.fields["class"]]
    return {
        "slug": case.slug,
        "title": case.title,
        "class": case.fields["class"],
        "symptom": case.fields["symptom"],
        "certainty": suspect.level,
        "matches": matches,
        "cause": flat(case.parts["Cause"]),
        "cure": flat(case.parts["Cure"]),
        "read": f"book/{page}.html#clinic-{case.slug}",
    }


def flat(text: str) -> str:
    """A paragraph of Markdown in one line; names keep their backticks."""
    text = re.sub(r"\{\w+\}`([^`<]+?)(?: ?<[^`]*>)?`", r"\1", " ".join(text.split()))
    return re.sub(r"\[([^\]]+)\]\([^)]+\)|\*\*?([^*`]+)\*\*?", r"\1\2", text)


def show(number: int, one: dict, several: bool) -> str:
    """A suspect for people."""
    kind = f"{one['slug']} ({one['class']}; {ENDS[one['symptom']]})"
    lines = [f"{number}. {one['title'].removesuffix('.')}", f"   {kind}"]
    if SURE[one["certainty"]]:
        lines.append(f"   {SURE[one['certainty']]}")
    for match in one["matches"]:
        place = f"{match['file']}, " * several + f"line {match['line']}"
        place += f", rank {match['rank']}" * bool(match["rank"])
        lines.append(f"   > {place}: {match['text']}")
    lines += [
        fill(f"{name.title()}: {one[name]}", **SHAPE) for name in ("cause", "cure")
    ]
    return "\n".join([*lines, f"   Read on: {one['read']}"])


def unknown(log: Log, number: int) -> str:
    """What to say if there is no sign of any case."""
    text = f"Not known: none of {number} cases shows in this log."
    if (line := first_error(log)) is not None:
        file, number = log.places[line]
        text += f" The first line that looks like an error is {number} of {file}."
    return fill(f"{text} {HELP}", WIDTH, break_on_hyphens=False)


def main(arguments: list[str] | None = None) -> int:
    """Read the logs, print what they show."""
    parser = argparse.ArgumentParser("python -m allranks.diagnose", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("logs", nargs="*", metavar="LOG", help="a file; - is stdin")
    parser.add_argument("--json", action="store_true", help="for tools")
    options = parser.parse_args(arguments)
    names = options.logs or ["-"]
    try:
        log, cases = Log(*map(load, names)), clinic.folder(CASES)
        suspects = diagnose(log, cases)
    except (ValueError, SyntaxError) as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    shown = [found(log, suspect) for suspect in suspects[:SHOWN]]
    if options.json:
        text = json.dumps({"known": bool(shown), "found": shown}, indent=1)
    elif shown:
        text = "\n\n".join(
            show(i, one, len(names) > 1) for i, one in enumerate(shown, 1)
        )
    else:
        text = unknown(log, len(cases))
    try:
        print(text, flush=True)
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
