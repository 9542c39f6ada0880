"""Live ranks for the tests: each with virtual GPUs, and a group that obeys NCCL."""

from contextlib import contextmanager

from allranks import Ranks

SETUP = """
from allranks import vgpu
from allranks.backends import nccl

nccl.install()
machine = vgpu.plug_in(world_size, kind="cuda")
gpu = f"cuda:{rank}"
group, gloo = dist.new_group(backend="nccl"), dist.new_group(backend="gloo")

def error(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
    return ""
"""


@contextmanager
def gpu_ranks(world_size: int):
    """Yield ranks that have ``gpu``, ``group`` and, beside it, ``gloo``."""
    with Ranks(world_size) as ranks:
        ranks.run(SETUP)
        yield ranks
