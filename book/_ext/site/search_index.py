"""The index of the search: one classic script, so that it loads from a file as well.

It has no postings: search.js makes them with MiniSearch when somebody first searches,
which takes a tenth of a second and saves half of the size. A text that results show is
kept as it is; the rest of a section is a list of its words, each once (or up to three
times, by its place), as two characters that number them in a common vocabulary.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable

from book._ext.site.search_entries import Entry
from book._ext.site.search_synonyms import rules

WORD = re.compile(r"(?:(?<![\w-])--)?[^\W_](?:[\w-]*[^\W_])?")
HUMP = re.compile(r"[a-z][A-Z]")
DIGITS = "".join(chr(n) for n in range(35, 127) if chr(n) not in "\\<&")
USUAL = 0.12
STOP = frozenset(
    re.findall(
        r"\w+",
        """
        a an and are as at be been both but by can did do does for from had
        has have how if in into is it its may more most no not of on one only
        or other our out over so some such than that the their them then there
        these they this those to too two up was we what when where which while
        who why will with would you your yes see also cause cure next time
        broken fixed before after run again same
        """,
    )
)


def words(text: str) -> list[str]:
    """Return the words of a text, in lower case unless it has a hump to split at.

    >>> words("The DataLoader of rank 0: set_epoch()")
    ['DataLoader', 'rank', 'set_epoch']
    """
    found = (w if HUMP.search(w) else w.lower() for w in WORD.findall(text))
    return [w for w in found if len(w) > 1 and not w.isdigit() and w not in STOP]


def weighed(entry: Entry) -> tuple[set[str], Counter]:
    """Return the identifiers of an entry, and its other words with their weights."""
    shown = set(words(f"{entry.title} {entry.lead}"))
    names = set(words(" ".join(entry.names))) - set(words(entry.title))
    rest = Counter(dict.fromkeys(words(entry.body), 1))
    for text, weight in entry.weights:
        for word in set(words(text)):
            rest[word] = max(rest[word], weight)
    for word in shown:
        rest[word] -= 1
    return names, +rest


def index(entries: Iterable[Entry]) -> dict:
    """Return what search.js reads."""
    entries = list(entries)
    bags = [weighed(entry) for entry in entries]
    usual = Counter(word for bag in bags for part in bag for word in part)
    for _, rest in bags:
        for word in [w for w in rest if usual[w] > USUAL * len(entries)]:
            del rest[word]  # a word of every eighth section tells none from another
    order = [word for word, _ in sorted(usual.items(), key=lambda i: (-i[1], i[0]))]
    if len(order) > len(DIGITS) ** 2:
        raise ValueError(f"the search has {len(order)} words, and no number for some")
    code = {
        word: DIGITS[n // len(DIGITS)] + DIGITS[n % len(DIGITS)]
        for n, word in enumerate(order)
    }
    pages = list(dict.fromkeys(entry.page for entry in entries))
    places: dict[tuple, int] = {}
    rows = []
    for number, (entry, (names, rest)) in enumerate(zip(entries, bags, strict=True)):
        path = (*entry.above, entry.title)
        parent = places.get((entry.page, entry.above), -1)
        places.setdefault((entry.page, path), number)
        rows.append(
            [
                pages.index(entry.page),
                entry.anchor,
                entry.kind,
                entry.title,
                parent,
                entry.lead,
                entry.messages,
                entry.said,
                "".join(sorted(map(code.get, names))),
                "".join(code[word] * count for word, count in sorted(rest.items())),
            ]
        )
    return {
        "pages": pages,
        "entries": rows,
        "words": " ".join(order),
        "synonyms": rules(),
    }


def script(entries: Iterable[Entry]) -> str:
    """Return the index as a classic script."""
    text = json.dumps(index(entries), ensure_ascii=False, separators=(",", ":"))
    return f"globalThis.allRanksIndex={text}\n"
