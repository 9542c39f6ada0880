"""What the fork server imports, once for all ranks to come.

A third of the time that torch takes to import goes into looking for garbage among
objects that are never freed. So the garbage collector is off during the import. Later
it skips what is frozen here, which also stays in memory that all ranks share.
"""

import gc

gc.disable()
import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401 - else the first optimizer imports it

import allranks.live.worker  # noqa: E402, F401

gc.freeze()
gc.enable()
