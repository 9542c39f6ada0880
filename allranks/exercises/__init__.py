"""Exercises: a stub to fill in, a check on live ranks, and hints that unfold.

Each exercise is one file, such as ``exercises/ex5_1.py``. Its form is described in
:mod:`allranks.exercises.files`, and what its check may use in
:mod:`allranks.exercises.oracle`. Readers get :func:`allranks.check` and
:func:`allranks.hints`; nothing is imported here, because each rank of a check would
import it again.
"""
