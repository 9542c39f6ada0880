"""Arrivals: who waits for whom in a collective."""
