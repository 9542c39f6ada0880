"""The book's own Sphinx extension, the only one of ours that ``_config.yml`` names.

Each part is a module with a ``setup(app)``; the other modules are helpers of the parts.
Always import them under their full name, such as ``book._ext.runs.records``: under a
second name Python would load the module again, and ``isinstance`` would fail, because
the two copies of a class are not the same.
"""

import gc
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # tests and tools that do without Sphinx need not wait for it
    from sphinx.application import Sphinx

PAGES = ("html", "dirhtml")  # the builders whose pages have scripts
PARTS = (
    "site.fresh",  # an edit of a style sheet or an extension rebuilds what it touches
    "site.lexers",  # colors the ranks' output; highlights %%ranks cells as Python
    "site.mathml",  # formulas without a script
    "runs.run",  # {run}: a command and its recorded output
    "runs.bench",  # {bench}: a measured figure
    "runs.picture",  # {picture}: drawn from what a run printed
    "runs.glued",  # a notebook's page leaves out what hands its results to other pages
    "runs.callouts",  # {callouts}: a listing with numbers at its lines
    "runs.gpu",  # {gpu}: what make gpu found, with the machine and the date
    "runs.outside",  # {outside}: tests of strangers, with our classes and PyTorch's
    "runs.status",  # {status}: when each file last ran, and how it ended
    "chapters.chapter_diff",  # {chapter-diff}: what changed between two scripts
    "chapters.map_cards",  # {chapter-map}: all chapters in one figure, each a link
    "chapters.terms",  # {terms}: the glossary, from the pages' front matter
    "chapters.section_pages",  # numbers a chapter's section pages: 8.1
    "chapters.draft",  # says on a draft that it is one
    "chapters.opening",  # {opening}: the picture of a chapter's idea, before any code
    "clinic.specimen",  # {specimens}: what goes wrong and its repair, both executed
    "clinic.cases",  # {clinic}: the failures of a class, each with its cure, executed
    "clinic.lists",  # {clinic-index}, {clinic-guard}, {clinic-count}
    "clinic.hang_table",  # {hang-table}, {hang-output}, {hangs}: which tool finds what
    "quiz.nodes",  # how builders write a quiz; its style sheet loads before a course's
    "quiz.directive",  # {quiz}: a question to answer on the page
    "chapters.course",  # {course-sheet}, {course-plan}, {progress}: read off the pages
    "chapters.exercises",  # {exercises}: a chapter's exercises, with minutes and links
    "chapters.predict",  # a notebook's results are folded until one has guessed
    "clinic.diagnose",  # {diagnose}: the box that finds a log's failure in the clinic
    "clinic.symptoms",  # {symptoms}: questions that end at a few cases
    "site.explorable",  # {explorable}: an interactive figure on a page
    "site.wall_chart",  # {wall-chart}, {wall-sheet}: one training step, to print too
    "site.filter_box",  # {filter-box}: narrows the clinic's index, and the glossary
    "site.cards",  # wide tables become cards on a phone
    "site.links",  # a page's files, places to run it, ways to change it
    "site.search",  # results by section, while typing, without a server
    "paper.builder",  # EPUB and PDF: no controls, nothing folded
    "site.unused",  # leaves out the fonts, icons and styles that no page loads
    "site.share",  # what a link to a page shows elsewhere; the page index.html
)


def setup(app: "Sphinx") -> dict[str, bool | str]:
    """Set up each part in the order of PARTS."""
    # A build keeps most of what it makes, so searches for garbage find little. With
    # Python's default they take an eighth of its time.
    gc.set_threshold(50_000, 20, 20)
    for part in PARTS:
        import_module(f"{__name__}.{part}").setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
