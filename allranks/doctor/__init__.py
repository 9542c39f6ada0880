"""Look at one machine of a training job: ``python -m allranks.doctor``.

``command`` is the tool, and ``report`` prints its results. ``checks`` has a module of
checks for each subject; ``registry`` lists them, and ``running`` runs one so that it
can neither break nor hang the others. The checks get their facts from three modules:
``facts`` reads what the standard library can read, ``nvidia_smi`` asks the driver's
tool, and ``wheels`` knows which driver and which GPU a build of torch needs. ``pack``
writes the whole doctor into one file, for machines on which nothing is installed.

No module here imports another layer of the package, nor anything outside the standard
library before a check needs it. All of them run on Python 3.8.
"""

from allranks.doctor.command import main
from allranks.doctor.report import show
from allranks.doctor.running import examine

__all__ = ["examine", "main", "show"]
