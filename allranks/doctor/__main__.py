"""Run the tool: ``python -m allranks.doctor``."""

from allranks.doctor.command import script

script()
