"""Run a script, unchanged, on one of our backends: on each rank that torchrun starts.

    torchrun --standalone --nproc-per-node 4 -m allranks.backends link:eth1 SCRIPT ...

What would have been gloo is that backend then: the group that the script asks for by
this name, and the one that torch chooses for a CPU.
"""

import argparse
import functools
import os
import re
import runpy
import sys
import time
from typing import Any, NoReturn

import torch.distributed as dist

from allranks import backends
from allranks.topics.links.network import parse

GLOO = re.compile(r"\b(gloo|undefined)\b", re.IGNORECASE)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line, of which everything after the script is the script's."""
    parser = argparse.ArgumentParser("-m allranks.backends", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("backend", help="shm, or a link: link:eth1, link:50us+1GB/s")
    parser.add_argument("script", help="the script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the script's arguments")
    return parser.parse_args(argv)


def instead_of_gloo(name: str) -> None:
    """Let torch make its groups on another backend wherever it would take gloo.

    All groups come from one function, whoever asks for them: by no name, which torch
    calls "undefined", as "gloo", as "GLOO", or as "cpu:gloo,cuda:nccl".
    """
    c10d = dist.distributed_c10d
    make = c10d._new_process_group_helper

    @functools.wraps(make)
    def make_group(
        size: int, rank: int, ranks: list[int], backend: str, *args: Any, **others: Any
    ) -> Any:
        backend = GLOO.sub(name, str(backend))
        return make(size, rank, ranks, backend, *args, **others)

    c10d._new_process_group_helper = make_group
    dist.Backend.default_device_backend_map["cpu"] = name


def refuse(why: str) -> NoReturn:
    """End all ranks with one sentence, which rank 0 says."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(9)  # then the launcher ends this rank
    raise SystemExit(why)


def main(argv: list[str] | None = None) -> None:
    """Register the backend, and run the script as __main__."""
    args = parse_args(argv)
    if not os.path.isfile(args.script):
        refuse(f"{args.script}: no such script")
    try:
        name = backends.register(args.backend)
        if name == "link":
            parse(os.environ.get(backends.link.VARIABLE, ""))
    except ValueError as error:
        refuse(str(error))
    instead_of_gloo(name)
    sys.argv = [args.script, *args.args]
    sys.path[0] = os.path.dirname(os.path.abspath(args.script))
    runpy.run_path(args.script, run_name="__main__")


if __name__ == "__main__":
    main()
