"""One training step on W ranks: what each rank holds, does, sends, and waits for."""
