"""End as a process does that Linux ends for want of memory."""

import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
