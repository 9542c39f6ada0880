"""The glossary is complete, in order, and true to the chapters that it names."""

import re

import pytest

from allranks.base.paths import ROOT
from book._ext.chapters import terms

GLOSSARY = terms.terms(ROOT)


def words(text: str) -> str:
    """Return text as terms are compared: in lower case, with -, _ and ` as spaces."""
    return re.sub(r"[-_\s`*]+", " ", text).lower().strip()


def chapter_text(label: str) -> str:
    """Return everything that belongs to a chapter: page, notebook and scripts.

    For the errata page, its specimens belong to it too. A page's front matter, where
    its terms stand, is left out.
    """
    stem = label.partition("_")[0] if label.startswith("ch") else label
    folders = [ROOT / name for name in ("book", "notebooks", "scripts")]
    files = [path for folder in folders for path in folder.glob(f"{stem}[_.]*")]
    files += (ROOT / "errata").glob("*.py") if label == "app_errata" else []
    texts = [path.read_text("utf8") for path in files if path.is_file()]
    return words("\n".join(text.rpartition("\n---\n")[2] for text in texts))


TERMS = {words(term.name) for term in GLOSSARY}


@pytest.mark.parametrize("term", GLOSSARY, ids=lambda term: term.name)
def test_an_entry_is_about_the_page_that_defines_it(term):
    """It has a sentence, and its page, notebook or scripts use the word."""
    assert term.sentence.endswith(".") and term.sentence == term.sentence.strip()
    assert words(term.name) in chapter_text(term.page)


def test_terms_are_sorted_and_a_word_has_one_home(tmp_path):
    """They stand in alphabetical order; two pages can't define the same word."""
    names = [term.name for term in GLOSSARY]
    assert names == sorted(names, key=str.lower) and len(names) > 90
    (tmp_path / "book").mkdir()
    for page, name in ("a", "mesh (网格)"), ("b", "Mesh"):
        text = f"---\nglossary: {{{name}: It is one.}}\n---\n# T\n"
        (tmp_path / "book" / f"{page}.md").write_text(text, "utf8")
    with pytest.raises(ValueError, match="Mesh: both a and b define it"):
        terms.terms(tmp_path)


def test_what_the_chapters_define_is_in_the_glossary():
    """It has the words of chapter 4's first table and each collective pages call."""
    pages = {p.stem: p.read_text("utf8") for p in (ROOT / "book").glob("ch*.md")}
    table = re.search(r"^\| word \|.*?\n\n", pages["ch4_ranks"], re.M | re.S)[0]
    rows = [row.split("|")[1] for row in table.splitlines()[2:] if row.strip()]
    defined = {words(row.partition(",")[0]) for row in rows} - {"local world size"}
    for text in pages.values():
        for name in re.findall(r"\bdist\.(\w+)\(", text):
            name = re.sub(r"_(single|into_tensor|tensor|object|object_list)$", "", name)
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


def test_words_with_more_than_one_meaning_number_them():
    """No sentence hides a second meaning behind a semicolon: the page lists these."""
    for term in GLOSSARY:
        assert "(1)" in term.sentence or "; also " not in term.sentence
    assert "{terms}`several`" in (ROOT / "book" / "app_glossary.md").read_text("utf8")


def test_a_barrier_and_replicate_are_what_the_chapters_say():
    """A barrier carries no data, and DataParallel's steps come in the page's order."""
    of = {term.name: term.sentence for term in GLOSSARY}
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
