"""What a rehearsal says while the script runs: one line on stderr, once per process."""

import os
import sys

said: set[str] = set()


def say_once(sentence: str) -> None:
    """Say something on stderr, once per process; of several ranks, rank 0 says it."""
    if sentence not in said:
        said.add(sentence)
        if os.environ.get("RANK", "0") == "0":
            print(f"rehearsal: {sentence}", file=sys.stderr)
