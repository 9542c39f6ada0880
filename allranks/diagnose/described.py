"""Find the cases that a described symptom may be: "it hangs at the end of the epoch".

symptoms.toml says in which words people put a thing, and which things go with which
case. A thing that goes with few cases tells more than one that goes with many. A case
of which a description tells too little is left out, even if no other fits better; one
thing alone is too little, unless the words that the description shares with the case's
title, symptom, cause and cure stand out. These words count for the order, too (by BM25:
Robertson and Zaragoza, 2009).
book/_static/described.js does the same with the same table, which has the numbers and
expressions below as well.
"""

import re
import tomllib
from collections import Counter
from functools import cache
from math import log, sqrt
from pathlib import Path

from allranks.clinic.specimens import Specimen
from allranks.diagnose.signs import for_browsers
from allranks.diagnose.suspects import BRIEF
from allranks.diagnose.text import Log, bare

DATA = Path(__file__).with_name("symptoms.toml")
FEW = 5  # candidates at most
NEAR = 40  # letters before and after a word, in which the others of its term stand
SELDOM = 0.85  # what the score of a case is worth that threads seldom show
LEAST = 3.0  # that a text has to tell of a case, as a logarithm: 1 of 20 cases
VAGUE = 1 / 3  # of what a thing tells, if questions about anything mention it
SHARED = 0.2  # of the score for each standard deviation of the shared words
ALONE = 2  # standard deviations, for a case of which one thing is told, no more
NEARLY = 0.55  # of the best total; a case below it does not fit as well
MANY = 0.2  # of the cases; words that more of them share tell little
K1, B = 1.2, 0.75  # of BM25, the usual values
ENDS = re.compile(r"(?:ing|ed|es|s|e)$")
WORD = re.compile(r"[a-z0-9]+|[\u4e00-\u9fff]+")
_LATIN = re.compile(r"[a-z0-9]")
LOGGED = re.compile(
    r'^(?:[a-z][\w-]*: |[\w.]*(?:Error|Exception|Warning)(?::|$)|File "|Traceback)',
    re.ASCII,
)
SPOKEN = re.compile(r"[A-Za-z]{2,}|[\u4e00-\u9fff]")
ODD = re.compile(r"[=\[\]{}<>|\\#@*~]|[:/][^ ]|[0-9][.:][0-9]|(?:^| )--?[A-Za-z]")
NUMBER = re.compile(r"[0-9]+")
TIMES = re.compile(r"\b([0-9]+) ?[x*\u00d7] ?(?=[a-z])", re.ASCII)
CARD = re.compile(r"\b(?=[ahpv][0-9]00s?\b)", re.ASCII)
NEEDED = "FEW NEAR LEAST VAGUE SHARED ALONE NEARLY BRIEF ENDS WORD LOGGED SPOKEN ODD "
NEEDED += "NUMBER TIMES CARD"  # by described.js
# Words of grammar, which are no beginnings: "no" is not "node", nor is "per" "perhaps".
_WHOLE = re.compile(
    "all|and|any|but|can|did|few|for|get|had|has|how|max|new|non|not|now|off|old|one|out|"
    "own|per|ran|see|set|the|too|two|[a-z]{1,2}"
)


@cache
def symptoms() -> dict:
    """Read the tree, the words and the cases."""
    return tomllib.loads(DATA.read_text("utf8"))


def normal(text: str) -> str:
    """Return the words of a text, with a space before and after each.

    >>> normal("It hangs: DDP, 多卡训练!")
    ' it hangs ddp 多卡训练 '
    >>> normal("8xA100, 4 * V100"), normal("3 h100s")
    (' 8 gpu a100 4 gpu v100 ', ' 3 gpu h100s ')
    """
    counted = CARD.sub("gpu ", TIMES.sub(r"\1 ", text.lower()))
    return f" {' '.join(WORD.findall(counted))} "


def needle(word: str) -> str:
    """Return what to look for in a normal text to find a word of a term.

    >>> needle("freez"), needle("dp."), needle("gpu-0"), needle("no"), needle("卡住")
    (' freez', ' dp ', ' gpu 0 ', ' no ', '卡住')
    """
    if not _LATIN.match(word):
        return word
    whole = word.endswith(".") or word.rpartition("-")[2].isdecimal()
    whole = whole or bool(_WHOLE.fullmatch(word))
    return f" {word.removesuffix('.').replace('-', ' ')}{' ' * whole}"


def stem(word: str) -> str:
    """Return a word without its ending, roughly.

    >>> [stem(word) for word in ("hanging", "hangs", "freezes", "loss")]
    ['hang', 'hang', 'freez', 'loss']
    """
    return ENDS.sub("", word) if len(word) > 4 else word


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
        tells: what each thing tells, for few cases have it.
        vague: the numbers of the things that questions about anything mention, too.
        cases: each case's name, the numbers of its things, what the score counts for
            it, and the things that must be said; after the cases come the pages that
            answer what is no failure.
        pages: by name, a page's title, its section and what it says.
        shared: what each word of their texts counts for which of them.
        constants: for described.js, what ``NEEDED`` names.
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
    # A title says more than a sentence below it, so its words count three times.
    texts = [3 * f"{case.title} " + case.prose for case in cases]
    texts += [3 * f"{page['title']} " + page["says"] for page in pages.values()]
    count = Counter(thing for some in mentioned.values() for thing in some)
    tells = [round(log(1 + len(mentioned) / count[thing]), 3) for thing in order]
    seldom, told_of = set(data["seldom"].split()), []
    needs, free = (set(data["needs"][key].split()) for key in ("things", "except"))
    for slug, some in mentioned.items():
        numbers = [order[thing] for thing in some]
        share = SELDOM if slug in seldom else 1.0
        share /= sqrt(sqrt(sum(tells[number] ** 2 for number in numbers)))
        must = [order[thing] for thing in some if thing in needs and slug not in free]
        told_of.append([slug, numbers, round(share, 3), must])
    main = [order[thing] for thing in data["main"].split()]
    told = {n: [p["title"], p["read"], p["says"]] for n, p in pages.items()}
    vague = [order[thing] for thing in data["vague"].split()]
    found = {"terms": terms, "main": main, "tells": tells, "vague": vague}
    found |= {"cases": told_of, "pages": told}
    found["constants"] = for_browsers(globals(), NEEDED)
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

    A case counts only if the text tells enough of it, and is left out if another fits
    far better.
    """
    said = things(text, searched)
    main = said.intersection(searched["main"])
    vague, tells = said.intersection(searched["vague"]), searched["tells"]
    common = [0] * len(searched["cases"])
    for word in {*map(stem, normal(text).split())} & searched["shared"].keys():
        pairs = searched["shared"][word]
        for case, weight in zip(pairs[::2], pairs[1::2], strict=True):
            common[case] += weight
    # A long description shares words with every case, so what counts is how far a case
    # stands out from the others.
    mean = sum(common) / len(common)
    spread = sqrt(sum((words - mean) ** 2 for words in common) / len(common)) or 1
    total = []
    for words, case in zip(common, searched["cases"], strict=True):
        slug, numbers, share, must = case
        both = said.intersection(numbers)
        told = sum(tells[number] for number in numbers if number in both)
        vaguely = sum(tells[number] for number in numbers if number in vague)
        if told - (1 - VAGUE) * vaguely < LEAST or not said.issuperset(must):
            continue
        stands_out = max(0, (words - mean) / spread)
        if len(both) == 1 and stands_out < ALONE:
            continue
        score = share * told
        if main and main.isdisjoint(numbers):
            score /= 2
        total.append((score + SHARED * stands_out, slug))
    best = max(total, default=(0, ""))[0]
    return sorted((p for p in total if p[0] >= NEARLY * best), key=lambda p: -p[0])


def spoken(line: str) -> bool:
    """Tell whether a person wrote a line, as far as its signs and digits show it."""
    said = bare(line)
    if said != line.lstrip(" -|").rstrip(" "):
        return False
    words = len(SPOKEN.findall(said))
    odd, numbers = len(ODD.findall(said)), len(NUMBER.findall(said))
    return words >= 2 and 4 * odd <= words and 2 * numbers <= words


def candidates(log: Log, searched: dict) -> list[str]:
    """Return the names of the cases that a short text may describe, the best first.

    Where an error is reported there are none: its message says more than its words.
    """
    lines = [line for line in log.lines if line.strip(" ")]
    if len(lines) > BRIEF or 2 * sum(map(spoken, lines)) < len(lines):
        return []
    if any(LOGGED.match(bare(line)) for line in lines):
        return []
    return [slug for _, slug in ranked("\n".join(lines), searched)[:FEW]]
