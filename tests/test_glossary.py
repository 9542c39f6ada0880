"""The glossary is complete, in order, and true to the chapters that it names."""

import re
from functools import cache

import pytest

from allranks.base.paths import ROOT

PAGE = (ROOT / "book" / "app_glossary.md").read_text("utf8")
LISTS = re.compile(r"^## (.)\n\n```\{glossary\}\n(.*?)^```$", re.M | re.S)
ENTRY = re.compile(
    r"(?P<term>\S.*)\n"
    r"  \[(?P<chinese>[^]]+)\]\{\.language-zh\} · (?P<sentence>.+?) "
    r"\{ref\}`(?P<chapter>\w+)`\n",
    re.S,
)
ENTRIES = [
    entry for _, block in LISTS.findall(PAGE) for entry in re.split(r"\n\n+", block)
]
FOUND = [ENTRY.fullmatch(f"{entry.strip()}\n") for entry in ENTRIES]


def words(text: str) -> str:
    """Return text as terms are compared: in lower case, with -, _ and ` as spaces."""
    return re.sub(r"[-_\s`*]+", " ", text).lower().strip()


@cache
def chapter_text(label: str) -> str:
    """Return everything that belongs to a chapter: page, notebook and scripts.

    For the errata page, its specimens belong to it too.
    """
    stem = label.partition("_")[0] if label.startswith("ch") else label
    folders = [ROOT / name for name in ("book", "notebooks", "scripts")]
    files = [path for folder in folders for path in folder.glob(f"{stem}[_.]*")]
    files += (ROOT / "errata").glob("*.py") if label == "app_errata" else []
    return words("\n".join(p.read_text("utf8") for p in files if p.is_file()))


TERMS = {words(match["term"]) for match in FOUND if match}


def test_every_entry_has_all_its_fields():
    """Each entry has a term, its Chinese, a sentence and a chapter."""
    broken = [e for e, match in zip(ENTRIES, FOUND, strict=True) if match is None]
    assert broken == []
    assert len(ENTRIES) >= 90


def test_an_entrys_chapter_uses_the_word():
    """What an entry refers to is about its term."""
    found = [(match["term"], match["chapter"]) for match in FOUND if match]
    assert [
        f"{term}: {chapter}"
        for term, chapter in found
        if words(term) not in chapter_text(chapter)
    ] == []


def test_terms_are_sorted_each_below_its_letter_and_said_once():
    """Terms are in alphabetical order, each once and below its first letter."""
    in_page = [match["term"] for match in FOUND if match]
    assert in_page == sorted(in_page, key=str.lower)
    assert len(TERMS) == len(in_page)
    letters = [letter for letter, _ in LISTS.findall(PAGE)]
    assert letters == sorted({term[0].upper() for term in in_page})


def test_what_the_chapters_define_is_in_the_glossary():
    """It has the words of chapter 4's first table and each collective pages call."""
    pages = {p.stem: p.read_text("utf8") for p in (ROOT / "book").glob("ch*.md")}
    table = re.search(r"^\| word \|.*?\n\n", pages["ch4_ranks"], re.M | re.S)[0]
    rows = [row.split("|")[1] for row in table.splitlines()[2:] if row.strip()]
    defined = {words(row.partition(",")[0]) for row in rows} - {"local world size"}
    for text in pages.values():
        for name in re.findall(r"\bdist\.(\w+)\(", text):
            name = re.sub(r"_(single|into_tensor|tensor|object)$", "", name)
            if not name.endswith(("_group", "_rank", "_size", "_device")):
                defined.add(words(name.removeprefix("i")))
    assert len(defined) > 12
    assert defined - TERMS == set()


@pytest.mark.parametrize("page", sorted(ROOT.glob("book/ch*.md")), ids=lambda p: p.stem)
def test_a_word_that_a_chapter_introduces_is_in_the_glossary(page):
    """A word in italics after an article, as in "a *collective*", is in it."""
    text = page.read_text("utf8")
    introduced = {words(w) for w in re.findall(r"\b[Aa]n?\s\*([a-z][a-z -]+)\*", text)}
    assert {
        w for w in introduced if {w, w.removesuffix("s")}.isdisjoint(TERMS)
    } == set()


def test_words_with_more_than_one_meaning_are_admitted():
    """The page's last box lists exactly the entries that number their meanings."""
    several = [m["term"] for m in FOUND if m and "(1)" in m["sentence"]]
    (listed,) = re.findall(r"number them in their entries: (.+)\.$", PAGE, re.M)
    assert listed.split(", ") == several
    for match in FOUND:  # no other entry hides a second meaning behind a semicolon
        if match and match["term"] not in several:
            assert "; also " not in " ".join(match["sentence"].split())


def test_a_barrier_and_replicate_are_what_the_chapters_say():
    """A barrier carries no data, and DataParallel's steps come in the page's order."""
    of = {m["term"]: " ".join(m["sentence"].split()) for m in FOUND if m}
    assert "no data of yours" in of["barrier"]
    chapter = (ROOT / "book" / "ch2_data_parallel.md").read_text("utf8")
    steps = re.findall(r"^\d\. \*\*(\w+)\*\*", chapter, re.M)[:4]
    order = {"first": "scatter", "second": "replicate", "last": "gather"}
    for word, name in order.items():
        assert f"DataParallel's {word} step" in of[name]
    assert (steps[0], steps[1], steps[-1]) == tuple(order.values())


def test_terms_of_hangs_and_pipelines_are_here():
    """Terms that readers meet in the clinic and in chapter 6 are in the glossary."""
    missing = (
        "activation checkpointing, agent, flight recorder, join, store, zero bubble"
    )
    assert set(missing.split(", ")) <= TERMS
