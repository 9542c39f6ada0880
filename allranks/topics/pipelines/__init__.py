"""Pipelines: micro-batches on their way through stages."""
