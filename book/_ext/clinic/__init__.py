"""Failures that were played: specimens, the error clinic, the table of hangs."""
