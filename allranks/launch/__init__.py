"""Run a script under torchrun from Python: ``launch("ch5_ddp", 2)``.

The module ``torchrun`` starts the script and leaves no process behind, and ``logs``
reads what the ranks wrote.
"""

from allranks.launch.logs import Launch, LaunchError
from allranks.launch.status import Status
from allranks.launch.torchrun import launch

__all__ = ["Launch", "LaunchError", "Status", "launch"]
