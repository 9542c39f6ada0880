"""What ``python -m allranks.diagnose`` says about a log, in words."""

import re
from textwrap import fill

from allranks import clinic
from allranks.clinic.specimens import Specimen
from allranks.diagnose.reading import Received
from allranks.diagnose.suspects import Suspect, first_error
from allranks.diagnose.text import Log
from allranks.diagnose.watchdog import compared

WIDTH = 88
SHAPE = {"width": WIDTH, "initial_indent": "   ", "subsequent_indent": "   "}
SHAPE |= {"break_long_words": False, "break_on_hyphens": False}
EXCERPT = 150
ENDS = {
    "crash": "fails",
    "hang": "hangs",
    "silent": "silently wrong",
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
    "stands still, book/app_clinic_invariants.html for numbers that are wrong. Or say "
    "in a sentence what you see, or let --ask ask you."
)


def about_suspect(log: Log, suspect: Suspect) -> dict:
    """Return what is told about a suspect, for people and for tools."""
    case = suspect.case
    matches = []
    for sign, hit in sorted(suspect.hits, key=lambda pair: pair[1].first):
        file, line = log.place(hit.first)
        begin = max(0, min(hit.begin - 30, hit.end - EXCERPT))
        text = hit.text[begin:].strip()
        cut = f"{text[:EXCERPT]}…" if len(text) > EXCERPT else text
        about = {"file": file, "line": line, "rank": log.rank(hit.first)}
        about |= {"text": f"…{cut}" if begin else cut, "sign": sign.pattern}
        if all(match["line"] != line or match["file"] != file for match in matches):
            matches.append(about)
    told = about_case(case) | {"certainty": suspect.level, "matches": matches}
    if any("WorkNCCL(" in hit.text for _, hit in suspect.hits):
        told["ranks"] = compared(log)
    return told


def about_case(case: Specimen) -> dict:
    """Return what is told about a case that no log shows, but a description."""
    page = clinic.CLASSES[case.fields["class"]]
    return {
        "slug": case.slug,
        "title": case.title,
        "class": case.fields["class"],
        "symptom": case.fields["symptom"],
        "cause": flat(case.parts["Cause"]),
        "cure": flat(case.parts["Cure"]),
        "read": f"book/{page}.html#clinic-{case.slug}",
    }


def about_page(name: str, title: str, section: str, says: str) -> dict:
    """Return what is told about a section that answers what is no failure."""
    page, _, anchor = section.partition("#")
    read = f"book/{page}.html#{anchor}"
    return {"page": name, "title": title, "says": flat(says), "read": read}


def flat(text: str) -> str:
    """Return a paragraph of Markdown in one line; names keep their backticks."""
    text = re.sub(r"\{\w+\}`([^`<]+?)(?: ?<[^`]*>)?`", r"\1", " ".join(text.split()))
    marks = r"(`[^`]*`)|\[([^\]]+)\]\([^)]+\)|\*\*?([^*`]+)\*\*?"  # code stays as it is
    return re.sub(marks, r"\1\2\3", text)


def show(number: int, one: dict, several: bool) -> str:
    """Return the text about a suspect, for people.

    Args:
        number: of the suspect, from 1 on.
        one: as ``about_suspect`` or ``about_case`` returns it.
        several: whether there are several logs, so that a line's file is named.
    """
    kind = "a section of the book"
    if "slug" in one:
        kind = f"{one['slug']} ({one['class']}; {ENDS[one['symptom']]})"
    lines = [f"{number}. {one['title'].removesuffix('.')}", f"   {kind}"]
    if doubt := SURE[one.get("certainty", "full")]:
        lines.append(f"   {doubt}")
    for match in one.get("matches", []):
        place = f"{match['file']}, " if several else ""
        place += f"line {match['line']}"
        place += f", rank {match['rank']}" if match["rank"] else ""
        lines.append(f"   > {place}: {match['text']}")
    told = [name for name in ("ranks", "cause", "cure") if one.get(name)]
    lines += [fill(f"{name.title()}: {one[name]}", **SHAPE) for name in told]
    lines += [fill(one["says"], **SHAPE)] if "says" in one else []
    return "\n".join([*lines, f"   Read on: {one['read']}"])


def unknown(log: Log, number: int) -> str:
    """Return what to say if there is no sign of any of a number of cases."""
    text = f"Not known: none of {number} cases shows in this log"
    if (line := first_error(log)) is None:
        text += ", and no line of it looks like an error."
    else:
        file, number = log.place(line)
        text += f". The first line that looks like an error is {number} of {file}."
    return fill(f"{text} {HELP}", WIDTH, break_on_hyphens=False)


def likely(number: int, several: bool) -> str:
    """Return what comes before the cases that a description may mean."""
    what = "one of these, the likeliest first" if several else "this"
    text = (
        f"Not known: none of {number} cases shows in this text. But if it describes "
        f"what you see, it may be {what}. (--ask finds a case by a few questions.)"
    )
    return fill(text, WIDTH, break_on_hyphens=False)


def nothing() -> str:
    """Return what to say if a sentence describes nothing that the book knows."""
    text = (
        "Not known: nothing in the book fits these words. Say what you see, and when: "
        "does it hang, fail, run out of memory, is it wrong, is it slow? With how many "
        "GPUs and machines; in DDP, FSDP, a pipeline? --ask finds a case by a few "
        "questions, and search.html searches the book."
    )
    return fill(text, WIDTH, break_on_hyphens=False)


def stopped(log: Log, line: int, came: Received, known: bool) -> str:
    """Return what to say about a job that somebody ended.

    Args:
        log: what to diagnose.
        line: the first one after the end.
        came: what came through stdin.
        known: whether a case is found.
    """
    file, number = log.place(min(line, len(log.lines) - 1))
    place = f"line {number} of {file}"
    if known:
        text = f"After that the job was ended by Ctrl-C ({place}); what it said then "
        return fill(text + "follows from it, and was left out.", WIDTH)
    if came.stood:  # only a pipe shows how long nothing came
        text = f"You ended a job that stood still: nothing came for {came.still:.0f} s."
    else:
        text = (
            "This job was ended by Ctrl-C, and the log shows no failure before that. "
            "If it stood still:"
        )
    text += (
        " book/app_clinic_hangs.html says which tool finds the rank that the others "
        f"wait for. What came after Ctrl-C ({place}) is only a consequence."
    )
    return fill(text, WIDTH, break_on_hyphens=False)
