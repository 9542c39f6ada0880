"""Run the tool: ``python -m allranks.checkpoint``."""

import sys

try:
    from allranks.checkpoint.command import run
except KeyboardInterrupt:
    sys.exit(130)  # importing torch takes seconds, in which Ctrl-C may come

sys.exit(run())
