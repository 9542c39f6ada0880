"""What is attached to the ranks before code that hangs: a function per tool."""

import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allranks.hangs import flight

COLLECTIVES = (
    "all_gather all_gather_into_tensor all_gather_object all_gather_single all_reduce "
    "all_to_all barrier broadcast broadcast_object_list gather gather_object new_group "
    "reduce reduce_scatter_single reduce_scatter_tensor scatter"
)


def limit_groups(seconds: float, detail: bool = False) -> None:
    """Form the default group again on a rank, with a timeout and maybe with DETAIL.

    ``new_group`` does not inherit the default group's timeout, so it gets the same one.

    Args:
        seconds: the timeout of both.
        detail: whether to set torch's debug level to DETAIL.
    """
    from datetime import timedelta

    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    if detail:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        # In torch 2.13, DDP's logger crashes on the CPU in a group that DETAIL wraps.
        dist.Logger.set_construction_data_and_log = lambda *args: None
    store, limit = dist.FileStore("again", world_size), timedelta(seconds=seconds)
    options = {"store": store, "rank": rank, "world_size": world_size}
    dist.init_process_group("gloo", timeout=limit, **options)
    dist.new_group = functools.partial(dist.new_group, timeout=limit)


def monitor(seconds: float) -> None:
    """Put a monitored barrier before each collective and each forward pass of a rank.

    All ranks of a group have to come by there; send and recv are no such places.

    Args:
        seconds: how long a barrier waits.
    """
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    limit = timedelta(seconds=seconds)

    def check(group: Any = None) -> None:
        group = group if isinstance(group, dist.ProcessGroup) else None
        dist.monitored_barrier(group, timeout=limit, wait_all_ranks=True)

    def checked(function: Callable) -> Callable:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            check(kwargs.get("group"))
            return function(*args, **kwargs)

        return call

    for name in COLLECTIVES.split():
        if hasattr(dist, name):
            setattr(dist, name, checked(getattr(dist, name)))
    # DDP's reducer and FSDP's hooks call C++ themselves, past the functions above.
    steps = (DistributedDataParallel, FSDPModule)
    torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, args: check() if isinstance(module, steps) else None
    )
    import torch.distributed.checkpoint.state_dict as whole
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

    for place, name in (
        (whole, "get_model_state_dict"),
        (whole, "get_state_dict"),
        (PipelineScheduleSingle, "step"),
    ):
        setattr(place, name, checked(getattr(place, name)))


def register_fault_handler() -> None:
    """Make a rank write the stacks of all its threads to a file upon SIGUSR2."""
    import faulthandler

    file = open(f"stack{os.getpid()}", "w")  # noqa: SIM115 - open for life
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)


def wait_to_dump() -> None:
    """Start a thread on a rank that dumps the flight recorder when it is asked to."""
    import threading

    here = Path.cwd()

    def watch() -> None:
        while not (here / "asked").exists():
            time.sleep(0.02)
        flight.dump(here / "dumps")

    threading.Thread(target=watch, daemon=True).start()
