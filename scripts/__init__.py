"""The scripts find one another by name, started as files or imported from here."""

import os
import sys

# `import job` in a script: torchrun and python put the script's folder on the path.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
