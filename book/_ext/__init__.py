"""The book's own Sphinx extension: ``_config.yml`` names ``book._ext``, and no more.

A part is a module with a ``setup(app)``; the other modules are what parts are made of.
Everybody imports them under their full name, such as ``book._ext.runs.records``. Under
a second name Python would load a module twice, and its classes would not be equal.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the tests and tools that need no Sphinx do not wait for it
    from sphinx.application import Sphinx

PAGES = ("html", "dirhtml")  # the builders whose pages have scripts
PARTS = (
    "site.fresh",  # an edit of a style sheet or an extension rebuilds what it touches
    "site.lexers",  # the colours of ranks; %%ranks cells as Python
    "site.mathml",  # formulas without a script
    "runs.run",  # {run}: a command and its recorded output
    "runs.bench",  # {bench}: a measured figure
    "runs.gpu",  # {gpu}: what make gpu found, with the machine and the date
    "runs.status",  # {status}: when each file ran last, and how it ended
    "chapters.chapter_diff",  # {chapter-diff}: what changed between two scripts
    "chapters.chapter_map",  # {chapter-map}: all chapters in one figure, each a link
    "clinic.specimen",  # {specimens}: what goes wrong and its repair, both executed
    "clinic.cases",  # {clinic}: the failures of a class, each with its cure, executed
    "clinic.lists",  # {clinic-index}, {clinic-guard}, {clinic-count}
    "clinic.hang_table",  # {hang-table}, {hang-output}, {hangs}: which tool finds which
    "quiz.nodes",  # how each builder writes a quiz; its style comes before a course's
    "quiz.directive",  # {quiz}: a question to answer on the page
    "chapters.course",  # {course-sheet}, {course-plan}, {progress}: counted in pages
    "clinic.diagnose",  # {diagnose}: the box that finds a log's failure in the clinic
    "site.explorable",  # {explorable}: something to turn on a page
    "site.links",  # a page's files, places to run it, ways to change it
    "site.search_words",  # search knows a name by its parts
    "paper.builder",  # EPUB and PDF: no control, nothing folded
    "site.finish",  # what the theme has no option for
    "weight.slim",  # one style sheet, one script, a small font of icons: comes last
)


def setup(app: "Sphinx") -> dict[str, bool | str]:
    """Set up each part in the order of PARTS."""
    for part in PARTS:
        import_module(f"{__name__}.{part}").setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
