"""Run the tool: ``python -m allranks.checkpoint``."""

import atexit
import gc
import sys

# Torch brings a million objects, none of them garbage: a third of a short command's
# time would be a search among them, while they come and when Python ends.
gc.disable()
atexit.register(gc.freeze)
try:
    from allranks.checkpoint.command import run
except KeyboardInterrupt:
    sys.exit(130)  # importing torch takes seconds, in which Ctrl-C may come

sys.exit(run())
