"""Run the tool: ``python -m allranks.diagnose``."""

import sys

from allranks.diagnose.command import main

sys.exit(main())
