"""Kinds of what ``allranks.guard`` finds, apart from it: its import takes a second."""

GUARD = "guard"
SAME_NUMBERS = "same-random-numbers"
