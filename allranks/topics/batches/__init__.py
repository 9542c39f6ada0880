"""Batches: which rank trains on which samples."""
