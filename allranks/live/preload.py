"""What the fork server imports, once for all ranks to come.

A third of the time that torch takes to import goes into looking for garbage among
objects that are never freed. So the garbage collector is off during the import. Later
it skips what is frozen here, which also stays in memory that all ranks share.
"""

import atexit
import gc
import os
import shutil
import sys
from multiprocessing import forkserver, process
from pathlib import Path

# This process has a session of its own (see ``server``). A kernel is killed together
# with its process group, but somebody has to tidy up.
# The parent says its number: it may be dead before this process could ask.
PARENT, SERVER = int(os.environ.pop("ALLRANKS_PARENT", os.getppid())), os.getpid()
# Last comes the folder of the notebook, where a file may be called random.py. Each rank
# gets the parent's own order back.
sys.path.sort(key=lambda folder: folder in ("", process.ORIGINAL_DIR, os.getcwd()))
gc.disable()
import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401 - else the first optimizer imports it

import allranks.backends  # noqa: E402
import allranks.live.worker  # noqa: E402, F401
from allranks.live import shell  # noqa: E402
from allranks.live.server import READY  # noqa: E402

shell.prepare()


@atexit.register
def remove_folder_of_killed_parent() -> None:
    """Remove multiprocessing's temporary folder, if the parent no longer can.

    It has the socket of this fork server, which ends when nobody holds its other end.
    """
    address = forkserver._forkserver._forkserver_address
    if os.getpid() == SERVER and os.getppid() != PARENT and isinstance(address, str):
        folder = Path(address).parent
        if folder.name.startswith("pymp-"):
            shutil.rmtree(folder, ignore_errors=True)


gc.freeze()
gc.enable()
os.write(1, READY)
