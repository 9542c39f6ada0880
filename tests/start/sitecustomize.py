"""Collect garbage less often: Python runs this file in each process a test starts.

A quarter of the time that importing torch takes goes into looking for garbage among
objects that live for ever, and the tests import torch some hundred times.
"""

import gc

gc.set_threshold(50_000, 20, 20)
