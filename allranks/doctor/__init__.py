"""Look at one machine of a training job: ``python -m allranks.doctor``.

``command`` is the tool, and ``report`` prints for it. ``checks`` holds the checks, a
module for each subject; ``registry`` lists them, and ``running`` runs one so that it
can neither break nor hang the rest. The checks learn from three modules: ``facts``
reads what the standard library can read, ``nvidia_smi`` asks the driver's tool, and
``wheels`` knows torch, and which driver and which GPU a build of it needs. ``pack``
writes all of it into one file for machines on which nothing is installed.

Nothing here imports another layer of the package, nor anything but the standard
library before a check asks for it. Every module keeps to what Python 3.8 understands.
"""

from allranks.doctor.command import main
from allranks.doctor.report import show
from allranks.doctor.running import examine

__all__ = ["examine", "main", "show"]
