"""Find the failure that a log shows: ``python -m allranks.diagnose LOG ...``.

``reading`` reads the log, and ``text`` makes it plain. ``signs`` has the regular
expressions to look for, and ``search`` finds where they match. ``suspects`` decides
which cases to name, and ``answers`` has what is said about them, with what NCCL's
``watchdog`` tells of several ranks. ``command`` is the tool. The diagnosis on the
book's page, book/_static/diagnose.js, does the same as text, search and suspects, step
by step, with the numbers, words and expressions that ``page`` takes from them.

For those who have no log, ``described`` finds what a described symptom may be, from the
words and the tree of symptoms.toml.
"""

from allranks.diagnose.command import main
from allranks.diagnose.suspects import diagnose

__all__ = ["diagnose", "main"]
