"""torchrun's agent in a rehearsal: it leaves it to the report to say who failed.

    python -m allranks.rehearse.agent torch.distributed.run --nproc-per-node 2 ...

On its own it adds some thirty lines about a module that is not the reader's. Only the
exit codes of the ranks are kept, since a rank that a signal ended cannot tell its own.
"""

import importlib
import logging
import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from allranks.rehearse import records

LOGGERS = {  # which say that ranks failed, and how many threads each has
    "torch.distributed.elastic.multiprocessing.api": logging.CRITICAL,
    "torch.distributed.run": logging.ERROR,
}


def main(words: list[str]) -> int:
    """Run the agent; return its exit code."""
    stage, module = records.stage(), importlib.import_module(words[0])
    if not stage.full:  # after the import, which sets levels, too
        for name, level in LOGGERS.items():
            logging.getLogger(name).setLevel(level)
    sys.argv = [words[0], *words[1:]]
    try:
        module.main()
    except ChildFailedError as error:
        failed = error.failures.values()
        codes = {process.pid: process.exitcode for process in failed}
        records.write_exit_codes(codes, stage.folder)
        if stage.full:
            raise
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
