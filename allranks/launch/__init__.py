"""Run a script under torchrun from Python: ``launch("ch5_ddp", 2)``.

``torchrun`` starts it and leaves no process behind; ``logs`` reads what it left.
"""

from allranks.launch.logs import Launch, LaunchError
from allranks.launch.torchrun import launch

__all__ = ["Launch", "LaunchError", "launch"]
