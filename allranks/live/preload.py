"""What the fork server imports, once for all ranks to come.

A third of the time that torch takes to import goes into looking for garbage among
objects that live for ever. So nobody looks meanwhile, nor later: what is frozen here
also stays in memory that all ranks share.
"""

import gc

gc.disable()
import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401 - the first optimizer would import it

import allranks.live.worker  # noqa: E402, F401

gc.freeze()
gc.enable()
