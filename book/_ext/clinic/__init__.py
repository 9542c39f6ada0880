"""Failures that were run on purpose: specimens, the error clinic, the hang table."""
