"""The checks: a module for each subject, imported in the order in which they run."""

from allranks.doctor.checks import program  # isort: skip
from allranks.doctor.checks import gpus  # isort: skip
from allranks.doctor.checks import machine  # isort: skip
from allranks.doctor.checks import network  # isort: skip
from allranks.doctor.checks import ranks  # isort: skip
from allranks.doctor.registry import CHECKS

__all__ = ["CHECKS", "gpus", "machine", "network", "program", "ranks"]
