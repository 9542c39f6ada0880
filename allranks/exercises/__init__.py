"""Exercises: a stub to fill in, a check on live ranks, hints that unfold.

One exercise is one file, ``exercises/ex5_1.py``; :mod:`allranks.exercises.files` says
how it reads, :mod:`allranks.exercises.oracle` what its check may use.
"""

from allranks.exercises.grader import Answer, check
from allranks.exercises.help import hints

__all__ = ["Answer", "check", "hints"]
