"""The error clinic's machinery: specimens are read, played, and their ends recorded.

The specimens themselves are in ``clinic/`` and ``errata/`` at the root of the tree.
"""

from allranks.clinic.cases import CLASSES, PARTS, SYMPTOMS, folder, read
from allranks.clinic.outcomes import RECORDS, Outcome, record, recorded
from allranks.clinic.specimens import QUOTED, Specimen

__all__ = ["CLASSES", "PARTS", "QUOTED", "RECORDS", "SYMPTOMS", "Outcome", "Specimen"]
__all__ += ["folder", "read", "record", "recorded"]
