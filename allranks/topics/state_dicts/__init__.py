"""State dicts: what wrappers do to their keys."""
