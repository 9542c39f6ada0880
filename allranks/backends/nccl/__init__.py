"""The backend "nccl" of torch.distributed, for virtual GPUs.

After ``install``, ``dist.init_process_group("nccl")`` makes a group that obeys NCCL's
rules, and fails in NCCL's words, while gloo carries the numbers between processes.
``watch`` tells of every call, and ``watch_others`` of those that leave GPUs' tensors to
another backend. Speed and NCCL's own faults are not rehearsed.
"""

from allranks.backends.nccl.calls import Call, watch, watch_others
from allranks.backends.nccl.patches import install, uninstall
from allranks.backends.nccl.watchdog import set_patience

__all__ = ["Call", "install", "set_patience", "uninstall", "watch", "watch_others"]
