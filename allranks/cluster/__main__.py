"""Run the tool: ``python -m allranks.cluster``."""

from allranks.cluster.command import script

script()
