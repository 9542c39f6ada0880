"""Find the cases that a described symptom may be: "it hangs at the end of the epoch".

symptoms.toml says in which words people put a thing, and which things go with which
case. A thing that goes with few cases says more than one that goes with many.
book/_static/described.js does the same with the same table, so a change belongs in
both.
"""

import re
import tomllib
from functools import cache
from math import log, sqrt
from pathlib import Path

from allranks.diagnose.suspects import BRIEF
from allranks.diagnose.text import Log, bare

DATA = Path(__file__).with_name("symptoms.toml")
FEW = 5  # candidates at most
NEAR = 40  # letters before and after a word, in which the others of its term stand
SELDOM = 0.85  # what the score of a case is worth that threads seldom show
LEAST = 0.9  # of a score; below, the text is no description
_WORD = re.compile(r"[a-z0-9]+|[\u4e00-\u9fff]+")
_LATIN = re.compile(r"[a-z0-9]")
_LOGGED = re.compile(
    r'[a-z][\w-]*: |[\w.]*(?:Error|Exception|Warning)\b|File "|Traceback', re.ASCII
)
_SPOKEN = re.compile(r"[A-Za-z]{2,}|[\u4e00-\u9fff]")
_ODD = re.compile(r"[=\[\]{}<>|\\#@*~]|[:/][^ ]|[0-9][.:][0-9]|(?:^| )--?[A-Za-z]")
_NUMBER = re.compile(r"[0-9]+")


@cache
def symptoms() -> dict:
    """Read the tree, the words and the cases."""
    return tomllib.loads(DATA.read_text("utf8"))


def normal(text: str) -> str:
    """Return the words of a text, with a space before and after each.

    >>> normal("It hangs: DDP, 多卡训练!")
    ' it hangs ddp 多卡训练 '
    """
    return f" {' '.join(_WORD.findall(text.lower()))} "


def needle(word: str) -> str:
    """Return what to look for in a normal text to find a word of a term.

    >>> needle("freez"), needle("dp."), needle("gpu-0"), needle("卡住")
    (' freez', ' dp ', ' gpu 0 ', '卡住')
    """
    if not _LATIN.match(word):
        return word
    whole = word.endswith(".") or word.rpartition("-")[2].isdecimal()
    return f" {word.removesuffix('.').replace('-', ' ')}{' ' * whole}"


@cache
def table() -> dict:
    """Return what the search needs.

    Returns:
        terms: each thing's terms, as lists of needles, in the order of things.
        main: the numbers of the things that tell kinds of failures apart.
        cases: each case's name, and the weights of its things by their number.
    """
    data = symptoms()
    order = {thing: number for number, thing in enumerate(data["words"])}
    terms = [
        [[needle(word) for word in term.split()] for term in said.split(", ")]
        for said in data["words"].values()
    ]
    mentioned = {slug: said.split() for slug, said in sorted(data["cases"].items())}
    count = dict.fromkeys(order, 0)
    for things in mentioned.values():
        for thing in things:
            count[thing] += 1
    seldom, cases = set(data["seldom"].split()), []
    for slug, things in mentioned.items():
        weights = [log(1 + len(mentioned) / count[thing]) for thing in things]
        share = SELDOM if slug in seldom else 1.0
        share /= sqrt(sqrt(sum(weight**2 for weight in weights)))
        pairs = zip(things, weights, strict=True)
        cases.append([slug, [[order[t], round(w * share, 3)] for t, w in pairs]])
    main = [order[thing] for thing in data["main"].split()]
    return {"terms": terms, "main": main, "cases": cases}


def near(text: str, needles: list[str]) -> bool:
    """Tell whether all words of a term stand close together in a normal text."""
    first, *others = needles
    at = text.find(first)
    while at >= 0:
        part = text[max(0, at - NEAR) : at + len(first) + NEAR]
        if all(other in part for other in others):
            return True
        at = text.find(first, at + 1)
    return False


def things(text: str) -> set[int]:
    """Return the numbers of the things that a text speaks of."""
    plain = normal(text)
    return {
        number
        for number, terms in enumerate(table()["terms"])
        if any(near(plain, needles) for needles in terms)
    }


def ranked(text: str) -> list[tuple[float, str]]:
    """Return scores and names of all cases that a text may describe, the best first."""
    said = things(text)
    main = said.intersection(table()["main"])
    scores = []
    for slug, weights in table()["cases"]:
        score = sum(weight for thing, weight in weights if thing in said)
        if main and main.isdisjoint(thing for thing, _ in weights):
            score /= 2
        scores.append((score, slug))
    return sorted((pair for pair in scores if pair[0]), key=lambda pair: -pair[0])


def spoken(line: str) -> bool:
    """Tell whether a person wrote a line, as far as its signs and digits show it."""
    said = bare(line)
    if said != line.lstrip(" -|").rstrip(" "):
        return False
    words = len(_SPOKEN.findall(said))
    odd, numbers = len(_ODD.findall(said)), len(_NUMBER.findall(said))
    return words >= 2 and 4 * odd <= words and 2 * numbers <= words


def candidates(log: Log) -> list[str]:
    """Return the names of the cases that a short text may describe, the best first.

    Where an error is reported there are none: its message says more than its words.
    """
    lines = [line for line in log.lines if line.strip(" ")]
    if len(lines) > BRIEF or 2 * sum(map(spoken, lines)) < len(lines):
        return []
    if any(_LOGGED.match(bare(line)) for line in lines):
        return []
    best = ranked("\n".join(lines))[:FEW]
    return [slug for score, slug in best if score >= LEAST]
