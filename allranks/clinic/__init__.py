"""The error clinic: read specimens, play them, and record how they ended.

The specimens themselves are in ``clinic/`` and ``errata/`` at the root of the tree.
``specimens`` splits such a file into docstring and cells, ``cases`` reads what else a
failure of the clinic has, ``errata`` what a mistake of an article has, ``play`` runs
the cells, and ``outcomes`` records how they ended.
"""

from allranks.clinic.cases import CLASSES, PARTS, SYMPTOMS, folder, read
from allranks.clinic.outcomes import RECORDS, Outcome, record, recorded
from allranks.clinic.specimens import QUOTED, Specimen

__all__ = ["CLASSES", "PARTS", "QUOTED", "RECORDS", "SYMPTOMS", "Outcome", "Specimen"]
__all__ += ["folder", "read", "record", "recorded"]
