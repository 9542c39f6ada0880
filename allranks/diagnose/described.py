"""Find the cases that a described symptom may be: "it hangs at the end of the epoch".

symptoms.toml says in which words people put a thing, and which things go with which
case. A thing that goes with few cases says more than one that goes with many. Among
cases of which a description has about as many things, the words that it shares with a
case's title, symptom, cause and cure decide (by BM25: Robertson and Zaragoza, 2009).
book/_static/described.js does the same with the same table, so a change belongs in
both.
"""

import re
import tomllib
from collections import Counter
from functools import cache
from math import log, sqrt
from pathlib import Path

from allranks.clinic.specimens import Specimen
from allranks.diagnose.suspects import BRIEF
from allranks.diagnose.text import Log, bare

DATA = Path(__file__).with_name("symptoms.toml")
FEW = 5  # candidates at most
NEAR = 40  # letters before and after a word, in which the others of its term stand
SELDOM = 0.85  # what the score of a case is worth that threads seldom show
LEAST = 0.9  # of the things of the best case; below, the text is no description
SHARED = 0.7  # what shared words count, where the things of the best case count 1
VAGUE = 3  # vague things that name a case without another
NEARLY = 0.5  # of the best total; a case below it does not fit as well
MANY = 0.2  # of the cases; words that more of them share tell little
K1, B = 1.2, 0.75  # of BM25, the usual values
_ENDS = re.compile(r"(?:ing|ed|es|s|e)$")
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


def stem(word: str) -> str:
    """Return a word without its ending, roughly.

    >>> [stem(word) for word in ("hanging", "hangs", "freezes", "loss")]
    ['hang', 'hang', 'freez', 'loss']
    """
    return _ENDS.sub("", word) if len(word) > 4 else word


def shared(texts: list[str]) -> dict[str, list[int]]:
    """Return what each word of some texts counts for which of them.

    Returns:
        By word: the number of a text and the word's weight in tenths, in turn. Words
        that many texts share are left out, for they tell little and make pages heavy.
    """
    counts = [Counter(map(stem, normal(text).split())) for text in texts]
    among = Counter(word for count in counts for word in count)
    mean = sum(count.total() for count in counts) / len(counts)
    weights: dict[str, list[int]] = {}
    for number, count in enumerate(counts):
        length = K1 * (1 - B + B * count.total() / mean)
        for word, times in sorted(count.items()):
            rare = log(1 + (len(texts) - among[word] + 0.5) / (among[word] + 0.5))
            weight = rare * times * (K1 + 1) / (times + length)
            if among[word] <= MANY * len(texts):
                weights.setdefault(word, []).extend([number, round(10 * weight)])
    return weights


def table(cases: list[Specimen]) -> dict:
    """Return what the search needs.

    Returns:
        terms: each thing's terms, as lists of needles, in the order of things.
        main: the numbers of the things that tell kinds of failures apart.
        cases: each case's name, the weights of its things by their number, and those
            that must be said; after the cases come the pages that answer what is no
            failure.
        pages: by name, a page's title, its section and what it says.
        shared: what each word of their texts counts for which of them.
    """
    data = symptoms()
    pages = data["pages"]
    order = {thing: number for number, thing in enumerate(data["words"])}
    terms = [
        [[needle(word) for word in term.split()] for term in said.split(", ")]
        for said in data["words"].values()
    ]
    mentioned = {c.slug: data["cases"][c.slug].split() for c in cases}
    mentioned |= {name: page["things"].split() for name, page in pages.items()}
    texts = [3 * f"{case.title} " + case.prose for case in cases]
    texts += [3 * f"{page['title']} " + page["says"] for page in pages.values()]
    count = dict.fromkeys(order, 0)
    for things in mentioned.values():
        for thing in things:
            count[thing] += 1
    seldom, weighed = set(data["seldom"].split()), []
    needs, free = (set(data["needs"][key].split()) for key in ("things", "except"))
    for slug, things in mentioned.items():
        weights = [log(1 + len(mentioned) / count[thing]) for thing in things]
        share = SELDOM if slug in seldom else 1.0
        share /= sqrt(sqrt(sum(weight**2 for weight in weights)))
        pairs = [
            [order[thing], round(weight * share, 3)]
            for thing, weight in zip(things, weights, strict=True)
        ]
        must = (
            [] if slug in free else [order[thing] for thing in things if thing in needs]
        )
        weighed.append([slug, pairs, must])
    main = [order[thing] for thing in data["main"].split()]
    told = {n: [p["title"], p["read"], p["says"]] for n, p in pages.items()}
    vague = [order[thing] for thing in data["vague"].split()]
    found = {"terms": terms, "main": main, "vague": vague}
    found |= {"cases": weighed, "pages": told}
    return found | {"shared": shared(texts)}


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


def things(text: str, searched: dict) -> set[int]:
    """Return the numbers of the things that a text speaks of."""
    plain = normal(text)
    return {
        number
        for number, terms in enumerate(searched["terms"])
        if any(near(plain, needles) for needles in terms)
    }


def ranked(text: str, searched: dict) -> list[tuple[float, str]]:
    """Return scores and names of what a text may describe, the best first.

    A case counts only if the text has more of it than vague things, and is left out
    if another fits twice as well.
    """
    said = things(text, searched)
    main = said.intersection(searched["main"])
    vague, scores = set(searched["vague"]), []
    for _, weights, must in searched["cases"]:
        score = sum(weight for thing, weight in weights if thing in said)
        shared_things = said.intersection(thing for thing, _ in weights)
        vaguely = shared_things <= vague and len(shared_things) < VAGUE
        if vaguely or not said.issuperset(must):
            score = 0.0
        if main and main.isdisjoint(thing for thing, _ in weights):
            score /= 2
        scores.append(score)
    best = max(scores)
    if best < LEAST:
        return []
    common = [0] * len(scores)
    for word in {*map(stem, normal(text).split())} & searched["shared"].keys():
        pairs = searched["shared"][word]
        for case, weight in zip(pairs[::2], pairs[1::2], strict=True):
            common[case] += weight
    most = max(common) or 1
    total = [
        (score and score / best + SHARED * words / most, slug)
        for score, words, (slug, *_) in zip(
            scores, common, searched["cases"], strict=True
        )
    ]
    most = max(total)[0]
    return sorted((p for p in total if p[0] >= NEARLY * most), key=lambda p: -p[0])


def spoken(line: str) -> bool:
    """Tell whether a person wrote a line, as far as its signs and digits show it."""
    said = bare(line)
    if said != line.lstrip(" -|").rstrip(" "):
        return False
    words = len(_SPOKEN.findall(said))
    odd, numbers = len(_ODD.findall(said)), len(_NUMBER.findall(said))
    return words >= 2 and 4 * odd <= words and 2 * numbers <= words


def candidates(log: Log, searched: dict) -> list[str]:
    """Return the names of the cases that a short text may describe, the best first.

    Where an error is reported there are none: its message says more than its words.
    """
    lines = [line for line in log.lines if line.strip(" ")]
    if len(lines) > BRIEF or 2 * sum(map(spoken, lines)) < len(lines):
        return []
    if any(_LOGGED.match(bare(line)) for line in lines):
        return []
    return [slug for _, slug in ranked("\n".join(lines), searched)[:FEW]]
