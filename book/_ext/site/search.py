"""The book's own search: its page, its index, and no trace of Sphinx's.

Sphinx finds pages, and readers look for sections: of 60 queries, 3 led first to the
section that answers. So each build writes an index of sections, cases, terms and
figures (search_entries.py, search_index.py), which search.js ranks in the browser.
The three scripts and the index load when somebody first opens the search.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from allranks import clinic
from allranks.topics import CLASSES
from book._ext.clinic.cases import load
from book._ext.front import fronts
from book._ext.site.search_entries import CASE, FIGURES, Entry, sections
from book._ext.site.search_index import script

INDEX = "search_index.js"
MOST = 600 * 1024  # bytes of the index; a test holds it
LEFT_OUT = "book/app_status", "book/app_course"  # nobody looks for what is listed there
SYMPTOMS = {"hang": "hangs; ", "slow": "slow; ", "silent": "wrong; "}
SYNTAX = re.compile(r"\\[wdsbWDSB]|\(\?[:!=]|\{\d[^}]*\}|\[[^\]]*\]|[\\^$|()*+?]|\.\*")


def literal(case: clinic.Specimen) -> str:
    """Return the words that the signs of a case have, without their syntax."""
    kinds = clinic.cases.FULL, clinic.cases.MAYBE
    signs = [
        s.partition(clinic.cases.AND)[0] for kind, s in case.signs if kind in kinds
    ]
    return " ".join(SYNTAX.sub(" ", sign) for sign in signs)


def said(root: Path) -> dict[str, str]:
    """Return how readers put it, by page and anchor, from the pages' front matter."""
    return {
        f"{page}#{anchor}": words
        for page, places in fronts(root, "said").items()
        for anchor, words in places.items()
    }


def spoken(module: str) -> str:
    """Return an explorable's name in words.

    >>> spoken("topology")
    'Who Is Who'
    """
    names = {module: title for title, module in CLASSES.items()}
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", names.get(module, module))


def add_messages(entry: Entry, case: clinic.Specimen) -> None:
    """Add to a case what it prints in other releases, as its signs know it."""
    known = entry.messages.lower()
    new = [word for word in literal(case).split() if word.lower() not in known]
    entry.names += [word for word in dict.fromkeys(new) if len(word) > 2]


def entries(env: BuildEnvironment) -> Iterator[Entry]:
    """Yield all that can be found, page by page in the order of the contents."""
    labels = env.domaindata["std"]["labels"]
    cases = {f"clinic-{case.slug}": case for case in load(Path(env.srcdir))}
    words = said(Path(env.srcdir))

    def label(target: str) -> str:
        return labels.get(target, ("", "", ""))[2]

    for page in order(env):
        for entry in sections(page, env.get_doctree(page), label):
            if page in LEFT_OUT and entry.above:
                continue
            place = f"{page.removeprefix('book/')}#{entry.anchor}"
            entry.said = words.get(place, "")
            if entry.kind == CASE:
                case = cases[entry.anchor]
                add_messages(entry, case)
                entry.said = SYMPTOMS.get(case.fields["symptom"], "") + entry.said
            elif entry.kind == FIGURES:
                entry.title = spoken(entry.title)
            yield entry


def order(env: BuildEnvironment) -> list[str]:
    """Return the pages in the order of the contents."""
    found: list[str] = []

    def walk(page: str) -> None:
        found.append(page)
        for below in env.toctree_includes.get(page, ()):
            if below not in found:
                walk(below)

    walk(env.config.root_doc)
    return found


def write_index(app: Sphinx, exception: Exception | None) -> None:
    """Write the index, before what no page names is deleted."""
    if exception or app.builder.name != "html":
        return
    text = script(entries(app.env))
    Path(app.outdir, "_static", INDEX).write_text(text, "utf8")
    Path(app.outdir, "searchindex.js").unlink(missing_ok=True)  # of an earlier build


def replace_sphinx(app: Sphinx) -> None:
    """Keep Sphinx from writing its index and its page."""
    if app.builder.name == "html":
        app.builder.search = False


def add_page(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    """Write the page that the theme's form leads to."""
    if app.builder.name == "html":
        text = "Search the sections, error messages, terms and figures of the book."
        described = f'<meta content="{text}" name="description" />'
        yield "search", {"metatags": described}, "search.html"


def setup(app: Sphinx) -> None:
    """Replace the search."""
    app.connect("builder-inited", replace_sphinx)
    app.connect("html-collect-pages", add_page)
    app.connect("build-finished", write_index, priority=800)
