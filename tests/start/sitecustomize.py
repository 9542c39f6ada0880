"""Python runs this at the start of each process that a test starts.

A quarter of the time that torch takes to import goes into looking for garbage among
objects that live for ever, and the tests import it some hundred times.
"""

import gc

gc.set_threshold(50_000, 20, 20)
