"""Find the failure that a log shows: ``python -m allranks.diagnose LOG ...``.

``reading`` and ``pipe`` take the log in, ``text`` makes it plain, ``signs`` are what to
look for, ``search`` finds where they match, ``suspects`` decides which case may be
named, and ``words`` says it. ``command`` is the tool. The page's own diagnosis,
book/_static/diagnose.js, does the same as text, search and suspects, step by step.
"""

from allranks.diagnose.command import main
from allranks.diagnose.suspects import diagnose

__all__ = ["diagnose", "main"]
